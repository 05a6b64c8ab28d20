"""Transformers as a static server: it takes what has arrived, pads it to one batch, and generates to its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from experiments.bench.engines.arrivals import Clock, Inbox
from experiments.bench.engines.base import Engine, EngineInfo
from experiments.bench.engines.options import EngineOptions
from experiments.bench.engines.transformers_model import MODULES, TransformersModel
from experiments.bench.jobs import BenchRequest, Served

MAX_NUM_SEQS: Final = 64
Waiting = tuple[BenchRequest, float]


class TransformersStatic(Engine):
    """`model.generate` over left-padded batches of up to `max_num_seqs` requests, in the order of arrival."""

    modules = MODULES

    def __init__(self, model: Path, options: EngineOptions) -> None:
        self._model = TransformersModel(model, options)
        self._max_num_seqs = options.max_num_seqs or MAX_NUM_SEQS

    @property
    def info(self) -> EngineInfo:
        return self._model.info(max_num_seqs=self._max_num_seqs)

    @property
    def memory(self) -> tuple[int | None, int | None]:
        return self._model.weight_bytes, None

    def serve(self, requests: Sequence[BenchRequest], ignore_eos: bool) -> list[Served]:
        clock = Clock()
        inbox = Inbox(requests, clock)
        waiting: deque[Waiting] = deque()
        served: list[Served] = []
        try:
            while inbox or waiting:
                waiting.extend(inbox.take(wait=not waiting))
                served += self._generate(self._next_batch(waiting), clock, ignore_eos)
        finally:
            inbox.close()
        return served

    def _next_batch(self, waiting: deque[Waiting]) -> list[Waiting]:
        """The first that wait, as many as one batch may hold: its longest prompt and output are what each row takes."""
        batch = [waiting.popleft()]
        prompt, output = len(batch[0][0].prompt_token_ids), batch[0][0].max_tokens
        while waiting and len(batch) < self._max_num_seqs:
            request = waiting[0][0]
            prompt, output = max(prompt, len(request.prompt_token_ids)), max(output, request.max_tokens)
            if prompt + output > self._model.max_model_len:
                break
            batch.append(waiting.popleft())
        return batch

    def _generate(self, batch: list[Waiting], clock: Clock, ignore_eos: bool) -> list[Served]:
        """Run a batch to its largest `max_tokens`; the outputs are cut where each request ends."""
        import torch

        longest = max(len(request.prompt_token_ids) for request, _ in batch)
        input_ids = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros_like(input_ids)
        for row, (request, _) in enumerate(batch):
            start = longest - len(request.prompt_token_ids)
            input_ids[row, start:] = torch.tensor(request.prompt_token_ids)
            mask[row, start:] = 1
        eos = [] if ignore_eos else self._model.eos_token_ids
        config = self._model.generation_config(
            max_new_tokens=max(request.max_tokens for request, _ in batch), eos_token_id=eos or None
        )
        times = TokenTimes(clock)
        start_s = clock()
        with torch.inference_mode():
            output = self._model.model.generate(
                input_ids, attention_mask=mask, generation_config=config, streamer=times
            )
        rows = output[:, longest:].tolist()
        return [
            _served(request, submitted, start_s, row, times.times_s, eos)
            for (request, submitted), row in zip(batch, rows, strict=True)
        ]


class TokenTimes:
    """A streamer of Transformers that keeps when each token of a batch was there."""

    def __init__(self, clock: Clock) -> None:
        self.times_s: list[float] = []
        self._clock = clock
        self._has_prompt = False

    def put(self, token_ids: Any) -> None:
        if self._has_prompt:
            self.times_s.append(self._clock())
        # The first call brings the prompts.
        self._has_prompt = True

    def end(self) -> None:
        """Nothing is held back."""


def _served(
    request: BenchRequest,
    submitted_s: float,
    start_s: float,
    row: list[int],
    times_s: list[float],
    eos: Sequence[int],
) -> Served:
    token_ids = row[: request.max_tokens]
    first_eos = next((place for place, token in enumerate(token_ids) if token in eos), None)
    if first_eos is not None:
        token_ids = token_ids[: first_eos + 1]
    reason = "length" if first_eos is None else "stop"
    return Served(request.request_id, submitted_s, start_s, times_s[: len(token_ids)], token_ids, reason)
