"""vLLM in an environment of its own, as a child process."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tinyllm.bridge
from experiments.backends.base import Backend, GreedyOutput
from tinyllm.bridge.environment import vllm_python
from tinyllm.errors import IncompleteRunError, InputError


class VLLMBackend(Backend):
    """vLLM's `LLM.generate`, eager, one prompt at a time.

    The Python that has it is named by the environment variable `TINYLLM_VLLM_PYTHON`; default: what
    `make peer-vllm` makes.
    """

    def __init__(self, model: Path, *, device: str, dtype: str) -> None:
        python = vllm_python("--backend vllm")
        if device != "cpu":
            raise InputError(f"--backend vllm: --device {device} is not supported, only cpu")
        worker = Path(tinyllm.bridge.__file__).with_name("greedy_worker.py")
        self._process = subprocess.Popen(
            [python, worker, model, dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={"VLLM_CPU_KVCACHE_SPACE": "4", **os.environ},
        )
        self._read()

    def generate(self, prompt: Sequence[int], max_tokens: int, eos_token_ids: Sequence[int]) -> GreedyOutput:
        assert self._process.stdin is not None
        request = {"prompt": list(prompt), "max_tokens": max_tokens, "eos": list(eos_token_ids)}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._read()
        return GreedyOutput(answer["token_ids"], answer["margins"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise IncompleteRunError(
                f"--backend vllm: its process ended with exit code {code}; "
                f"run it by hand to see why: {' '.join(map(str, self._process.args))}"  # type: ignore[arg-type]
            )
        answer: dict[str, Any] = json.loads(line)
        return answer
