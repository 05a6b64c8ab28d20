"""Transformers with its continuous batching: a paged cache and a loop of steps in a thread of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from experiments.bench.engines.arrivals import Clock, Submitter
from experiments.bench.engines.base import Engine, EngineInfo
from experiments.bench.engines.options import EngineOptions
from experiments.bench.engines.transformers_model import MODULES, TransformersModel
from experiments.bench.jobs import BenchRequest, Served
from tinyllm.errors import IncompleteRunError, InputError

PAGE_SIZE: Final = 256
"""What Transformers takes by itself."""
NUM_SEQS: Final = 64
"""For how many sequences a pool of a given size is rounded up to whole pages, unless `max_num_seqs` says."""
POLL_SECONDS: Final = 0.5
NO_EOS: Final = -1


class TransformersContinuous(Engine):
    """`ContinuousBatchingManager`, without sharing of prefixes."""

    modules = (*MODULES, "transformers.generation.continuous_batching.continuous_api")

    def __init__(self, model: Path, options: EngineOptions) -> None:
        import torch
        from transformers import ContinuousBatchingConfig

        self._model = TransformersModel(model, options)
        config = ContinuousBatchingConfig(
            page_size=PAGE_SIZE,
            num_blocks=options.num_pages(PAGE_SIZE, options.max_num_seqs or NUM_SEQS),
            max_batch_tokens=options.max_num_batched_tokens,
            max_requests_per_batch=options.max_num_seqs,
            allow_block_sharing=False,
            auto_switch_to_flash=False,
        )
        generation = self._model.generation_config(eos_token_id=NO_EOS)
        try:
            # Its thread computes in the mode in which it is started.
            with torch.inference_mode():
                self._manager: Any = self._model.model.init_continuous_batching(
                    generation, continuous_batching_config=config
                )
                self._manager.warmup()
                self._manager.start()
        except (MemoryError, ValueError) as error:
            raise InputError(
                f"engine transformers-continuous: {error}; give a smaller num_gpu_blocks or max_num_batched_tokens "
                "(and install psutil: without it Transformers may not see the memory)"
            ) from None
        self._cache = self._manager.batch_processor.cache

    @property
    def info(self) -> EngineInfo:
        config = self._manager.continuous_batching_config
        return self._model.info(
            max_num_seqs=config.max_requests_per_batch,
            max_num_batched_tokens=config.max_batch_tokens,
            num_gpu_blocks=config.num_blocks,
            block_size=config.page_size,
        )

    @property
    def memory(self) -> tuple[int | None, int | None]:
        tensor = self._cache.cache_tensor
        return self._model.weight_bytes, tensor.numel() * tensor.element_size()

    def serve(self, requests: Sequence[BenchRequest], ignore_eos: bool) -> list[Served]:
        eos = NO_EOS if ignore_eos else self._model.eos_token_ids or NO_EOS
        submitted: dict[str, float] = {}

        def hand_over(request: BenchRequest, at: float) -> None:
            submitted[request.request_id] = at
            self._manager.add_request(
                request.prompt_token_ids,
                request_id=request.request_id,
                max_new_tokens=request.max_tokens,
                record_timestamps=True,
                eos_token_id=eos,
            )

        # The thread would begin with the first of those that are due at once.
        with self._manager.pause():
            clock = Clock()
            submitter = Submitter(requests, clock, hand_over)
            submitter.start()
        try:
            outputs = [self._next_output() for _ in requests]
        finally:
            submitter.stop()
        return [_served(output, clock, submitted[output.request_id], eos) for output in outputs]

    def _next_output(self) -> Any:
        """The output of the next request that ends."""
        while True:
            output = self._manager.get_result(timeout=POLL_SECONDS)
            if output is not None:
                return output
            if not self._manager.is_running():
                error = self._manager.background_thread_status.fatal_error
                raise IncompleteRunError(f"the loop of continuous batching ended: {error}")

    def close(self) -> None:
        self._manager.stop(block=True, timeout=5, hard_stop=True)


def _served(output: Any, clock: Clock, submitted_s: float, eos: int | Sequence[int]) -> Served:
    token_ids, stamps = list(output.generated_tokens), list(output.timestamps)
    error = output.error
    if error is None and len(stamps) != len(token_ids):
        error = "its cache was dropped, and with it the times of its tokens; give a larger num_gpu_blocks"
    stops = not isinstance(eos, int) and token_ids and token_ids[-1] in eos
    return Served(
        request_id=output.request_id,
        submitted_s=submitted_s,
        first_scheduled_s=clock.of(output.lifespan[0]) if output.lifespan[0] >= 0 else None,
        token_times_s=[clock.of(stamp) for stamp in stamps],
        token_ids=token_ids,
        finish_reason=None if error is not None else "stop" if stops else "length",
        error=error,
    )
