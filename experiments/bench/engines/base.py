"""What an engine is in its child process: a model that serves jobs, one after the other.

No module of an engine imports at its top what only the environment of that engine has: the parent process imports
the module too, to ask which Python it runs under.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from experiments.bench.engines.options import EngineOptions
from experiments.bench.jobs import BenchRequest, Job, Served
from tinyllm.errors import InputError


@dataclass(frozen=True)
class EngineInfo:
    """What a report has to say of an engine.

    Attributes:
        version: of the engine.
        dtype, threads: in which it computes.
        max_model_len: tokens of prompt and output at most.
        settings: what it really runs with, by its own names.
    """

    version: str
    dtype: str
    threads: int
    max_model_len: int
    settings: dict[str, Any] = field(default_factory=dict)


class Engine(ABC):
    """A model, loaded. Constructed once a process, after `prepare`.

    Args:
        model: a local Hugging Face directory.
        options: as they were given.

    Raises:
        InputError: an option or the directory is wrong for this engine.
    """

    modules: ClassVar[tuple[str, ...]] = ()
    """What it is made of."""

    @classmethod
    def python(cls, options: EngineOptions) -> Path:
        """The Python that has what this engine needs; asked in the parent process.

        Raises:
            InputError: there is none.
        """
        return Path(sys.executable)

    @classmethod
    def environment(cls, options: EngineOptions) -> Mapping[str, str]:
        """Environment variables that the child needs beside the parent's; asked in the parent process."""
        return {}

    @classmethod
    def prepare(cls) -> None:
        """Import all that takes memory before a model is there, and compile one kernel where kernels are compiled."""
        for module in cls.modules:
            import_module(module)

    @abstractmethod
    def __init__(self, model: Path, options: EngineOptions) -> None: ...

    @property
    @abstractmethod
    def info(self) -> EngineInfo: ...

    @property
    @abstractmethod
    def memory(self) -> tuple[int | None, int | None]:
        """Bytes of the weights and of the KV pool; None where the engine does not tell."""

    @abstractmethod
    def serve(self, requests: Sequence[BenchRequest], ignore_eos: bool) -> list[Served]:
        """Serve requests that fit the context; the clock starts with the call. Those due then go in before any step."""

    def run(self, job: Job) -> list[Served]:
        """Serve a job; what became of its requests is in their order. One that exceeds the context is refused alone."""
        limit = self.info.max_model_len
        served: dict[str, Served] = {}
        for request in job.requests:
            length = len(request.prompt_token_ids) + request.max_tokens
            if request.request_id in served:
                raise InputError(
                    f"request {request.request_id}: twice in the job; give each an id of its own"
                )
            reason = (
                f"prompt and output of {length} tokens exceed max_model_len {limit}"
                if length > limit
                else None
            )
            served[request.request_id] = Served(request.request_id, 0.0, None, [], [], None, reason)
        fitting = [request for request in job.requests if served[request.request_id].error is None]
        served |= {one.request_id: one for one in self.serve(fitting, job.ignore_eos)}
        return list(served.values())

    def close(self) -> None:  # noqa: B027  # most have nothing to close
        """Stop what runs in the background."""


def environment_of(options: EngineOptions) -> dict[str, str]:
    """Environment variables that any engine's child gets: the threads, and no look at a network."""
    variables = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if options.threads is not None:
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        variables |= dict.fromkeys(names, str(options.threads))
    return variables


def eos_token_ids(model: Path) -> list[int]:
    """The ids that end an output: of `generation_config.json`, else of `config.json`."""
    for file in ("generation_config.json", "config.json"):
        path = model / file
        found = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
        if found is not None:
            return [found] if isinstance(found, int) else list(found)
    return []


def checked_context(options: EngineOptions, context: int) -> int:
    """The longest sequence to serve.

    Raises:
        InputError: more is asked for than the model has.
    """
    if options.max_model_len is not None and options.max_model_len > context:
        raise InputError(
            f"engine option max_model_len {options.max_model_len}: the model's context is {context}; give at most that"
        )
    return options.max_model_len or context
