"""Our own engine, with the settings that a user of it gets on a CPU."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from experiments.bench.engines.base import EngineInfo, checked_context
from experiments.bench.engines.options import EngineOptions
from experiments.bench.engines.stepping import StepEngine, StepOutput, step_output
from experiments.bench.jobs import BenchRequest
from tinyllm.errors import IncompleteRunError

if TYPE_CHECKING:
    from tinyllm.engine.llm_engine import RequestOutput


class TinyLLM(StepEngine):
    """`LLMEngine` without prefix cache, log and text."""

    modules = ("tinyllm.engine.llm_engine",)
    compact_weights: ClassVar[bool] = True

    @classmethod
    def prepare(cls) -> None:
        super().prepare()
        try:
            import numba
            import numpy as np
        except ImportError:  # the engine runs without it, on torch alone
            return
        kernel = numba.njit(parallel=True)(lambda x: x + 1)
        kernel(np.zeros(2, np.float32))

    def __init__(self, model: Path, options: EngineOptions) -> None:
        import torch

        from tinyllm.engine.llm_engine import LLMEngine
        from tinyllm.engine.real import weight_bytes
        from tinyllm.engine.token_output import TokenOutputProcessor
        from tinyllm.models.config import ModelConfig
        from tinyllm.models.loader import DTYPES
        from tinyllm.runner.kv_cache import bytes_per_block

        checked_context(options, ModelConfig.from_directory(model).max_position_embeddings)
        self._engine = LLMEngine(
            model,
            dtype=options.dtype,
            attention=options.attention or "auto",
            seed=0,
            enable_prefix_caching=False,
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            num_gpu_blocks=options.num_gpu_blocks,
            block_size=options.block_size,
            compact_weights=self.compact_weights,
        )
        engine = self._engine.engine
        # Without a tokenizer there is no text to make, which no other engine makes here either.
        engine.outputs = TokenOutputProcessor(engine.model_config.eos_token_ids, engine.max_model_len)
        engine.core.output_processor = engine.outputs
        config, dtype = engine.model_config, DTYPES[options.dtype]
        block_bytes = bytes_per_block(config, engine.config.block_size, dtype)
        self._memory = weight_bytes(config, dtype), engine.config.num_gpu_blocks * block_bytes
        self._num_tokens: dict[str, int] = {}
        self._info = EngineInfo(
            version=version("tinyllm"),
            dtype=options.dtype,
            threads=torch.get_num_threads(),
            max_model_len=engine.max_model_len,
            settings={
                "torch": torch.__version__,
                "attention": type(engine.runner.attention).__name__,
                "max_num_seqs": engine.config.max_num_seqs,
                "max_num_batched_tokens": engine.config.max_num_batched_tokens,
                "num_gpu_blocks": engine.config.num_gpu_blocks,
                "block_size": engine.config.block_size,
            },
        )

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def memory(self) -> tuple[int | None, int | None]:
        return self._memory

    def add(self, request: BenchRequest, ignore_eos: bool) -> str | None:
        from tinyllm.engine.sampling_params import SamplingParams

        params = SamplingParams(max_tokens=request.max_tokens, temperature=0.0, ignore_eos=ignore_eos)
        self._engine.add_request(request.request_id, request.prompt_token_ids, params)
        self._num_tokens[request.request_id] = 0
        return None

    def step(self) -> list[StepOutput]:
        num_steps = self._engine.engine.core.num_steps
        outputs = self._engine.step()
        if not outputs and self._engine.engine.core.num_steps == num_steps:
            raise IncompleteRunError("stalled: unfinished requests, and none of them can run")
        return [self._new(output) for output in outputs]

    def running(self) -> Iterable[str]:
        return [request.request_id for request in self._engine.engine.scheduler.running]

    def _new(self, output: RequestOutput) -> StepOutput:
        request_id = output.request_id
        token_ids = output.token_ids[self._num_tokens[request_id] :]
        self._num_tokens[request_id] = len(output.token_ids)
        if output.finished:
            del self._num_tokens[request_id]
        return step_output(request_id, token_ids, output.finish_reason, output.error)


class TinyLLMFloat32(TinyLLM):
    """It with all weights in four bytes, whatever they are: what the compact ones bring."""

    compact_weights: ClassVar[bool] = False
