"""Output processors: what a step's result means for the requests. The scheduler sees only the outcomes."""

from __future__ import annotations

from typing import Protocol

from tinyllm.engine.runner import StepResult
from tinyllm.policy.batch import ONE_TOKEN, Outcome, ScheduledBatch
from tinyllm.policy.request import BlockHash, FinishReason, Request


class OutputProcessor(Protocol):
    """Knows what policies must not: the tokens, or in simulation the true output length."""

    def process(self, batch: ScheduledBatch, result: StepResult | None) -> list[Outcome | None]:
        """One outcome for each row, None for rows that do not sample. Called before the scheduler's update."""

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended."""


class TargetLengthProcessor:
    """For simulation: a request ends at its target length, at `max_tokens` or at the end of the context.

    Args:
        max_model_len: tokens of prompt and output at most; None for no limit.
        block_size: hash every generated block of this size, uniquely for its request, so that a request
            finds its own blocks again after a preemption; None without a prefix cache.
    """

    def __init__(self, max_model_len: int | None = None, block_size: int | None = None) -> None:
        self._max_model_len = max_model_len
        self._block_size = block_size
        # Index of each request's last output token, and why it is the last.
        self._last_token: dict[str, int] = {}
        self._reasons: dict[str, FinishReason] = {}

    def add(self, request: Request, target_output_tokens: int) -> None:
        """Tell the true output length (at least 1) of a request."""
        limit = request.max_tokens
        if self._max_model_len is not None:
            limit = min(limit, self._max_model_len - request.num_prompt_tokens)
        self._last_token[request.request_id] = min(target_output_tokens, limit) - 1
        stops = target_output_tokens < limit
        self._reasons[request.request_id] = FinishReason.STOP if stops else FinishReason.LENGTH

    def process(self, batch: ScheduledBatch, result: StepResult | None) -> list[Outcome | None]:
        last, outcome = self._last_token, self._outcome
        if self._block_size is None:
            # The hot path of a simulation: one look-up and one comparison a row.
            outcomes: list[Outcome | None] = [
                ONE_TOKEN if r.num_output_tokens < last[r.request_id] else outcome(r) for r in batch.requests
            ]
        else:
            outcomes = [outcome(request) for request in batch.requests]
        for row in batch.partial_rows:
            outcomes[row] = None
        return outcomes

    def _outcome(self, request: Request) -> Outcome:
        hashes: tuple[BlockHash, ...] = ()
        if self._block_size is not None and (request.num_tokens + 1) % self._block_size == 0:
            hashes = (private_hash(request.request_id, request.num_tokens // self._block_size),)
        if request.num_output_tokens < self._last_token[request.request_id]:
            return Outcome(1, None, hashes) if hashes else ONE_TOKEN
        return Outcome(1, self._reasons[request.request_id], hashes)

    def remove(self, request_id: str) -> None:
        self._last_token.pop(request_id, None)
        self._reasons.pop(request_id, None)


def private_hash(request_id: str, block: int) -> BlockHash:
    """Hash of the `block`-th block of a request when nobody else can have the same content."""
    return (request_id, block)
