"""Log-probabilities that a request may ask for beside its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from tinyllm.runner.request import RunnerRequest


class Logprobs(NamedTuple):
    """Of one sampled token, in natural logarithms under the raw logits: before temperature, masks and penalties.

    Attributes:
        logprob: of the chosen token.
        rank: of the chosen token, 1 is the likeliest.
        top_token_ids, top_logprobs: the likeliest tokens, as many as `SamplingParams.logprobs` says, best first.
    """

    logprob: float
    rank: int
    top_token_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


class LogprobsRequest:
    """The raw log-probabilities of the rows that ask for them, taken before sampling changes the logits.

    Args:
        logits: float32 [rows, vocab_size].
        requests: one a row.
    """

    def __init__(self, logits: Tensor, requests: Sequence[RunnerRequest]) -> None:
        self._num_rows = len(requests)
        self._rows: list[int] = []
        self._counts: list[int] = []
        for row, request in enumerate(requests):
            if request.params.logprobs is not None:
                self._rows.append(row)
                self._counts.append(min(request.params.logprobs, logits.shape[1]))
        self._logprobs = logits[self._rows].log_softmax(dim=-1) if self._rows else None

    def of(self, token_ids: Tensor) -> list[Logprobs | None] | None:
        """Of the chosen tokens int64 [rows]: one entry a row, None for rows that did not ask; None if none did."""
        if self._logprobs is None:
            return None
        chosen = self._logprobs.gather(1, token_ids[self._rows][:, None])
        ranks = (self._logprobs > chosen).sum(dim=-1) + 1
        top, top_ids = self._logprobs.topk(max(self._counts), dim=-1)
        result: list[Logprobs | None] = [None] * self._num_rows
        rows = zip(
            self._rows,
            self._counts,
            chosen[:, 0].tolist(),
            ranks.tolist(),
            top_ids.tolist(),
            top.tolist(),
            strict=True,
        )
        for row, count, logprob, rank, ids, values in rows:
            result[row] = Logprobs(logprob, rank, tuple(ids[:count]), tuple(values[:count]))
        return result
