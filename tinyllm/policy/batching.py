"""How a step is composed of its moves: prefills and decodes together, prefills first, or whole batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from tinyllm.policy.batch import ScheduledBatch
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.kv_manager import KVBlockManager
from tinyllm.policy.request import Request, RequestState

Phase = Literal["prefill", "decode"]


class Moves(Protocol):
    """The moves of a scheduler, from which a step is composed. Each fills the batch and keeps to its limits."""

    config: SchedulerConfig
    kv: KVBlockManager
    running: list[Request]
    chunk_limit: int

    @property
    def num_held(self) -> int:
        """Residents, at the end of `running`, that the policy holds."""

    def schedule_running(self, batch: ScheduledBatch, now: int, phase: Phase | None = None) -> int:
        """Give residents (of one phase) their tokens in order; return the budget that is left."""

    def schedule_waiting(self, batch: ScheduledBatch, budget: int, now: int) -> bool:
        """Admit in order; return whether it was the limits of the step, not seats, blocks or the queue, that
        ended it."""

    def preempt_last(self, batch: ScheduledBatch, now: int) -> Request:
        """Take the blocks of the last resident: a held one if there is one, else the largest key."""

    def add_row(self, batch: ScheduledBatch, request: Request, num_new: int, now: int) -> None:
        """Append a row of a resident that has the slots for so many tokens."""


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
            budget = self._schedule_running(moves, batch, now)
            if len(batch.preempted) == num_victims:
                moves.schedule_waiting(batch, budget, now)
            # The first resident had the largest key and went itself: vLLM makes this an empty step.
            again = not batch.requests and len(batch.preempted) > num_victims

    @staticmethod
    def _schedule_running(moves: Moves, batch: ScheduledBatch, now: int) -> int:
        """Plan a row for each resident, and enter those that nobody took back; return the budget that is left."""
        budget = moves.config.max_num_batched_tokens
        planned: dict[str, tuple[Request, int]] = {}
        residents = moves.running[: len(moves.running) - moves.num_held]
        for request in sorted(residents, key=lambda request: request.admitted_index):
            if request.state is not RequestState.RUNNING:
                continue
            if budget == 0:
                break
            num_new = min(request.num_tokens - request.num_computed_tokens, moves.chunk_limit, budget)
            while not moves.kv.allocate_slots(request, request.num_computed_tokens + num_new):
                victim = moves.preempt_last(batch, now)
                budget += planned.pop(victim.request_id, (victim, 0))[1]
                if victim is request:
                    break
            else:
                planned[request.request_id] = request, num_new
                budget -= num_new
                continue
            break
        for request, num_new in planned.values():
            moves.add_row(batch, request, num_new, now)
        return budget


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
