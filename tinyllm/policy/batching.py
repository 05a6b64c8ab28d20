"""How a step is composed of its moves: prefills and decodes together, prefills first, or whole batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from tinyllm.policy.batch import ScheduledBatch
from tinyllm.policy.request import Request

Phase = Literal["prefill", "decode"]


class Moves(Protocol):
    """The moves of a scheduler, from which a step is composed. Each fills the batch and keeps to its limits."""

    running: list[Request]

    def schedule_running(self, batch: ScheduledBatch, now: int, phase: Phase | None = None) -> int:
        """Give residents (of one phase) their tokens in order; return the budget that is left."""

    def schedule_running_taking_back(self, batch: ScheduledBatch, now: int) -> int:
        """Likewise in the order of admission, where even what this step has scheduled can be preempted."""

    def schedule_waiting(self, batch: ScheduledBatch, budget: int, now: int) -> bool:
        """Admit in order; return whether it was the limits of the step, not seats, blocks or the queue, that
        ended it."""


class Batching(Protocol):
    """Composes a step. Made anew for each scheduler: it may keep state from step to step."""

    def compose(self, moves: Moves, batch: ScheduledBatch, now: int) -> None: ...


class Mixed:
    """Continuous batching: residents by key, then waiting requests if no resident had to give up its blocks."""

    def compose(self, moves: Moves, batch: ScheduledBatch, now: int) -> None:
        num_victims = len(batch.preempted)
        budget = moves.schedule_running(batch, now)
        if len(batch.preempted) == num_victims:
            moves.schedule_waiting(batch, budget, now)


class TakeBack:
    """As `Mixed`, but residents go in the order of their admission, and who lacks blocks takes them from the one with
    the largest key, even if this step has scheduled that one already: its tokens go back to the budget. With
    `priority` this is vLLM's `--scheduling-policy priority`."""

    def compose(self, moves: Moves, batch: ScheduledBatch, now: int) -> None:
        again = True
        while again:
            num_victims = len(batch.preempted)
            budget = moves.schedule_running_taking_back(batch, now)
            if len(batch.preempted) == num_victims:
                moves.schedule_waiting(batch, budget, now)
            # The first resident had the largest key and went itself: vLLM makes this an empty step.
            again = not batch.requests and len(batch.preempted) > num_victims


class PrefillFirst:
    """A step prefills or decodes, never both, and prefills while there is anything to prefill (vLLM before chunked
    prefill, Orca's successors): a short time to first token, paid for by stalls between tokens."""

    def compose(self, moves: Moves, batch: ScheduledBatch, now: int) -> None:
        num_victims = len(batch.preempted)
        budget = moves.schedule_running(batch, now, "prefill")
        if len(batch.preempted) == num_victims:
            moves.schedule_waiting(batch, budget, now)
        if not batch.requests:
            moves.schedule_running(batch, now, "decode")


class Static:
    """Request-level batching (FasterTransformer): a batch is gathered when nothing runs, over several steps where
    the token budget does not reach, and nobody joins it until all of its requests have ended."""

    def __init__(self) -> None:
        self._gathers = True

    def compose(self, moves: Moves, batch: ScheduledBatch, now: int) -> None:
        self._gathers = self._gathers or not moves.running
        num_victims = len(batch.preempted)
        budget = moves.schedule_running(batch, now)
        if self._gathers and len(batch.preempted) == num_victims:
            self._gathers = moves.schedule_waiting(batch, budget, now)


BATCHING: dict[str, Callable[[], Batching]] = {
    "mixed": Mixed,
    "take-back": TakeBack,
    "prefill-first": PrefillFirst,
    "static": Static,
}
"""By the name that `--batching` takes."""
