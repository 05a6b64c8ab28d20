"""First come, first served: vLLM's default order."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllm.policy.base import FOREVER, SchedulingPolicy
from tinyllm.policy.request import Request, RequestState


class FCFS(SchedulingPolicy):
    """Running requests in order of admission; waiting ones as they were submitted, preempted ones in front.

    Among preempted requests the last one preempted is first, as if each were put at the head of the queue.
    """

    stable_waiting = True

    def key(self, view: Request, now: int) -> tuple[int, int]:
        if view.state is RequestState.RUNNING:
            return (0, view.admitted_index)
        if view.state is RequestState.PREEMPTED:
            return (0, -view.preempted_index)
        return (1, view.index)

    def decode_horizon(self, running: Sequence[Request], waiting: int, now: int) -> int:
        return FOREVER
