"""What executes a step: the Runner protocol, and a deterministic fake for tests and smoke runs."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from tinyllm.policy.batch import ScheduledBatch


class StepResult(NamedTuple):
    """What a step returned.

    Attributes:
        token_ids: one for each sampling row, in row order; None where the execution is simulated.
        logprobs: likewise, what the request asked for, or None.
        errors: likewise, why the row of a request failed, or None; a failed request ends alone.
        execute_ns: how long the device worked, where it was measured.
    """

    token_ids: Sequence[int | None]
    logprobs: Sequence[Any] | None = None
    errors: Sequence[str | None] | None = None
    execute_ns: int | None = None


class Runner(Protocol):
    """Executes scheduled batches and holds the token ids, which policies never see."""

    def add(self, request_id: str, token_ids: Sequence[int], params: Any) -> None:
        """Take in a request's prompt and its sampling parameters."""

    def run(self, batch: ScheduledBatch) -> StepResult:
        """Compute every row's tokens, `num_computed_tokens` onwards, and sample where the row says so."""

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended."""


class FakeRunner:
    """A model of no weights: the next token is a checksum of all tokens before it.

    Its output depends on the request's tokens alone, so any fault in what was scheduled, cached or
    preempted shows as another token.
    """

    def __init__(self, vocab_size: int = 1000) -> None:
        self.vocab_size = vocab_size
        self._tokens: dict[str, list[int]] = {}

    def add(self, request_id: str, token_ids: Sequence[int], params: Any) -> None:
        self._tokens[request_id] = list(token_ids)

    def run(self, batch: ScheduledBatch) -> StepResult:
        sampled: list[int | None] = []
        for request, num_new, samples in zip(
            batch.requests, batch.num_scheduled_tokens, batch.samples, strict=True
        ):
            if samples:
                tokens = self._tokens[request.request_id]
                known = tokens[: request.num_computed_tokens + num_new]
                token = zlib.crc32(b"".join(t.to_bytes(4, "little") for t in known)) % self.vocab_size
                tokens.append(token)
                sampled.append(token)
        return StepResult(sampled)

    def remove(self, request_id: str) -> None:
        del self._tokens[request_id]
