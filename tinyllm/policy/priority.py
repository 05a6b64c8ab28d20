"""Strict priority: a smaller number runs first, whatever the others wait."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllm.policy.base import FOREVER, SchedulingPolicy
from tinyllm.policy.request import Request


class Priority(SchedulingPolicy):
    """The order of the `priority` field, ties by arrival.

    Args:
        preemptive: whether a more urgent request takes the seat or blocks of a less urgent running one.
    """

    stable_waiting = True

    def __init__(self, preemptive: bool = True) -> None:
        self.preemptive = preemptive

    def key(self, view: Request, now: int) -> tuple[int]:
        return (view.priority,)

    def decode_horizon(self, running: Sequence[Request], waiting: int, now: int) -> int:
        return FOREVER
