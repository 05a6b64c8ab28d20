"""The real engine put together: the simulator's policy objects around a model of a checkpoint directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import torch

from tinyllm.engine.core import EngineCore
from tinyllm.engine.record.recorder import Recorder
from tinyllm.engine.record.workload import ArrivalRecord, request_from
from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.engine.token_output import TokenOutputProcessor
from tinyllm.engine.tokenizer import Tokenizer
from tinyllm.errors import InputError
from tinyllm.models.config import ModelConfig
from tinyllm.models.loader import DTYPES, checked_device, load_model
from tinyllm.models.registry import model_class
from tinyllm.policy.base import SchedulingPolicy
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.request import Request
from tinyllm.policy.scheduler import Scheduler
from tinyllm.runner.kv_cache import available_memory, num_blocks_for
from tinyllm.runner.model_runner import ModelRunner

GPU_MEMORY_UTILIZATION: Final = {"cuda": 0.9, "cpu": 0.3}
"""Share of a device's free memory for weights and KV cache, by type: a host's memory has other users."""

_DEFAULT_NUM_BLOCKS: Final = 4096
"""Where the system does not tell how much memory is free."""


def real_config(
    model_dir: str | Path,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    gpu_memory_utilization: float | None = None,
    **options: Any,
) -> SchedulerConfig:
    """The scheduler's configuration for a checkpoint, before it is loaded.

    Args:
        gpu_memory_utilization: share of the device's free memory that weights and KV cache may take; default
            by type of device. It decides `num_gpu_blocks` where that is not given.
        options: of `SchedulerConfig`; `max_model_len` is the model's context unless given, None counts as not given.

    Raises:
        InputError: an unknown option, a value out of range, a directory that is no checkpoint, or memory for
            not even one block.
    """
    options = {name: value for name, value in options.items() if value is not None}
    known = [field.name for field in fields(SchedulerConfig)]
    if unknown := sorted(options.keys() - set(known)):
        raise InputError(f"engine option {unknown[0]}: unknown; choose from {', '.join(known)}")
    model_config = ModelConfig.from_directory(model_dir)
    config = SchedulerConfig(**options)
    if config.preemption == "swap":
        raise InputError("--preemption swap exists in simulation only: choose recompute")
    config = replace(config, max_model_len=_max_model_len(config, model_config))
    if "num_gpu_blocks" in options:
        return config
    num_blocks = _num_blocks_that_fit(model_config, config.block_size, device, dtype, gpu_memory_utilization)
    return replace(config, num_gpu_blocks=num_blocks)


def _max_model_len(config: SchedulerConfig, model_config: ModelConfig) -> int:
    context = model_config.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > context:
        raise InputError(
            f"--max-model-len {config.max_model_len}: the model's context is {context}; give at most that"
        )
    return config.max_model_len or context


def _num_blocks_that_fit(
    model_config: ModelConfig, block_size: int, device: str, dtype: str, share: float | None
) -> int:
    if dtype not in DTYPES:
        raise InputError(f"--dtype {dtype}: not supported; choose one of {', '.join(DTYPES)}")
    place = checked_device(device)
    if share is None:
        share = GPU_MEMORY_UTILIZATION.get(place.type, GPU_MEMORY_UTILIZATION["cuda"])
    if not 0 < share <= 1:
        raise InputError(f"--gpu-memory-utilization {share}: give a share above 0 and at most 1")
    free = available_memory(place)
    if free is None:
        return _DEFAULT_NUM_BLOCKS
    kv_bytes = int(free * share) - weight_bytes(model_config, DTYPES[dtype])
    return num_blocks_for(max(kv_bytes, 0), model_config, block_size, DTYPES[dtype])


def weight_bytes(model_config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of a model's parameters, from its sizes alone."""
    with torch.device("meta"):
        model = model_class(model_config.architecture)(model_config, dtype)
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


class RealEngine:
    """Scheduler, runner and output processor of one model, wired to an `EngineCore`.

    Args:
        model_dir: a local Hugging Face directory.
        config: e.g. by `real_config`; without `max_model_len` the model's context counts.
        policy: a new policy object.
        recorder: makes the recorder of the log, from the scheduler; None keeps no log.
        device, dtype: where and in what numbers the model runs.
        attention: name of an attention backend.
        seed: fixes the draws of requests that bring no seed; None takes one from the system.
        compact_weights: on the CPU, keep weights in fewer bytes where that changes no bit of them.

    Attributes:
        core, scheduler, runner, outputs: the parts; drivers may call them directly.
        config: with `max_model_len` filled in.
        max_model_len: tokens of prompt and output at most.
        model_config: sizes of the model, its EOS ids.
        tokenizer: None where the directory has no `tokenizer.json`.

    Raises:
        InputError: whatever is wrong with the directory, the options or the memory, in one line. Cheap checks
            come first, the weights last.
    """

    def __init__(
        self,
        model_dir: str | Path,
        config: SchedulerConfig,
        policy: SchedulingPolicy,
        recorder: Callable[[Scheduler], Recorder] | None = None,
        device: str = "cpu",
        dtype: str = "float32",
        attention: str = "auto",
        seed: int | None = None,
        compact_weights: bool = True,
    ) -> None:
        self.model_config = ModelConfig.from_directory(model_dir)
        self.max_model_len = _max_model_len(config, self.model_config)
        self.config = replace(config, max_model_len=self.max_model_len)
        self.tokenizer = Tokenizer.from_directory(model_dir, self.model_config.vocab_size)
        self.scheduler = Scheduler(self.config, policy)
        self.outputs = TokenOutputProcessor(
            self.model_config.eos_token_ids,
            self.max_model_len,
            block_size=config.block_size if config.enable_prefix_caching else None,
            tokenizer=self.tokenizer,
        )
        self.core = EngineCore(self.scheduler, self.outputs, recorder(self.scheduler) if recorder else None)
        model = load_model(model_dir, device, dtype, compact_weights)
        self.runner = ModelRunner(model, config.num_gpu_blocks, config.block_size, attention, seed)
        self._start = time.monotonic_ns()

    def clock(self) -> int:
        """The engine's own monotonic clock: ns since it was made. A driver may keep another."""
        return time.monotonic_ns() - self._start

    def add_request(
        self,
        record: ArrivalRecord,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        now: int,
        submitted: int | None = None,
    ) -> str | None:
        """Let a request wait; between steps only.

        Args:
            record: what policies and the log see; `record.prompt_tokens` is the length of the prompt. Its
                `max_tokens` is what the client declared, and may be more than `params.max_tokens`, at which the
                output ends.

        Returns:
            None, or the reason for which it was refused; the others are unaffected.
        """
        request = request_from(record)
        # Asked first: an id in use must not touch the state of the request that has it.
        if self.scheduler.refusal(request, now) is None:
            try:
                self._admit(request, prompt_token_ids, params)
            except InputError as error:
                handed_over = now if submitted is None else submitted
                self.core.recorder.rejected(record, handed_over, str(error), now)
                return str(error)
        return self.core.add_request(record, request, now, submitted)

    def abort(self, request_id: str, now: int) -> bool:
        """End an unfinished request, between steps; False if there is none with this id."""
        if not self.core.abort(request_id, now):
            return False
        self.runner.remove(request_id)
        return True

    def step(self, clock: Callable[[], int] | None = None, now: int | None = None) -> list[Request] | None:
        """One step; the requests that ended with it, or None if nothing could run (`EngineCore.step`)."""
        return self.core.step(self.runner, clock or self.clock, now)

    def _admit(self, request: Request, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self.runner.add(request.request_id, prompt_token_ids, params)
        try:
            request.block_hashes = list(self.outputs.add(request.request_id, prompt_token_ids, params))
        except InputError:
            self.runner.remove(request.request_id)
            raise
