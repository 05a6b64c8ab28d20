"""Executes scheduled batches with a model: one forward pass a step, whatever it mixes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from tinyllm.engine.runner import StepResult
from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.errors import InputError
from tinyllm.models.base import DecoderModel
from tinyllm.policy.batch import ScheduledBatch
from tinyllm.runner.attention import get_backend
from tinyllm.runner.batch import FlatBatch
from tinyllm.runner.kv_cache import KVCache
from tinyllm.runner.request import RunnerRequest
from tinyllm.runner.sampler import Sampler
from tinyllm.runner.timing import StepTimer

try:
    from tinyllm.runner.fused import fused_decoder
except ImportError:
    fused_decoder = None  # type: ignore[assignment]


class ModelRunner:
    """A `tinyllm.engine.runner.Runner` over a model, its paged KV cache and a sampler.

    It knows the tokens of each request and nothing of its progress: how far a row is computed, and in which
    blocks, is read from every batch, so preemption and shared prefixes need no word to the runner.

    Args:
        model: on its device, in its dtype; the KV cache takes the same.
        num_blocks, block_size: of the KV cache.
        attention: name of the backend (`tinyllm.runner.attention`).
        seed: fixes the draws of requests that bring no seed; None takes one from the system.

    Attributes:
        last_execute_ns: how long the device worked on the last step, sampling included.
        fused: the compiled decoder that computes the steps in place of the model, or None.

    Raises:
        InputError: the backend is unknown, or the KV cache does not fit.
    """

    def __init__(
        self,
        model: DecoderModel,
        num_blocks: int,
        block_size: int,
        attention: str = "auto",
        seed: int | None = None,
    ) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self.kv_cache = KVCache(model.config, num_blocks, block_size, self.device, model.dtype)
        self.attention = get_backend(attention, self.device)(self.kv_cache, model.config)
        self.fused = None
        if attention in ("auto", "cpu") and fused_decoder is not None:
            self.fused = fused_decoder(model, self.kv_cache)
        self._vocab_size = model.config.vocab_size
        self.sampler = Sampler([t for t in model.config.eos_token_ids if t < self._vocab_size])
        self._seeds = random.Random(seed)
        self._requests: dict[str, RunnerRequest] = {}
        self._timer = StepTimer(self.device)

    @property
    def last_execute_ns(self) -> int:
        return self._timer.elapsed_ns

    def add(self, request_id: str, token_ids: Sequence[int], params: SamplingParams) -> None:
        """Take in a request's prompt.

        Raises:
            InputError: the prompt is empty, or a token id is none of the model's.
        """
        if not len(token_ids):
            raise InputError(f"request {request_id}: the prompt has no tokens; give at least one")
        for what, ids in (("prompt", token_ids), ("stop_token_ids", params.stop_token_ids)):
            self._check_token_ids(request_id, what, ids)
        # Drawn for seeded requests too: whether one brings a seed does not shift the seeds of the others.
        drawn = self._seeds.getrandbits(64)
        seed = drawn if params.seed is None else params.seed
        self._requests[request_id] = RunnerRequest(token_ids, params, seed)

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended."""
        del self._requests[request_id]

    def token_ids(self, request_id: str) -> list[int]:
        """Prompt and output of a request so far."""
        return list(map(int, self._requests[request_id].token_ids))

    @torch.inference_mode()
    def run(self, batch: ScheduledBatch) -> StepResult:
        """Compute every row's scheduled tokens, then sample the rows that have reached their last known token."""
        with self._timer:
            flat = FlatBatch.build(batch, self._requests, self.kv_cache.block_size, self.device)
            hidden = self.forward(flat)
            if not len(flat.logits_rows):
                return StepResult([])
            logits = self.model.compute_logits(hidden)
            rows = zip(batch.requests, batch.samples, strict=True)
            sampling = [self._requests[request.request_id] for request, samples in rows if samples]
            result = self.sampler.sample(logits, sampling)
        for request, token_id in zip(sampling, result.token_ids, strict=True):
            if token_id is not None:
                request.append(token_id)
        return result

    def forward(self, flat: FlatBatch) -> Tensor:
        """The normed hidden states of a flattened batch's sampling rows, [num_sampling_rows, hidden_size]."""
        if self.fused is not None:
            return self.fused(flat)
        hidden: Tensor = self.model(flat.input_ids, flat.positions, self.attention.prepare(flat))
        return hidden[flat.logits_rows]

    def _check_token_ids(self, request_id: str, what: str, token_ids: Sequence[int]) -> None:
        low, high = min(token_ids, default=0), max(token_ids, default=0)
        if low < 0 or high >= self._vocab_size:
            raise InputError(
                f"request {request_id}: {what} holds token id {low if low < 0 else high}, the model's are 0 to "
                f"{self._vocab_size - 1}; was it made by another tokenizer?"
            )
