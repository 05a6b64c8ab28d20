"""Priority with aging: waiting makes a request more urgent, so that none waits for ever."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllm.policy.base import FOREVER, SchedulingPolicy
from tinyllm.policy.request import Request
from tinyllm.policy.units import to_ns


class AgedPriority(SchedulingPolicy):
    """The order of the `priority` field, which falls (grows more urgent) by one every `aging` seconds.

    Args:
        aging: seconds since the arrival that are worth one level of priority.
        preemptive: whether a more urgent request takes the seat or blocks of a less urgent running one.
    """

    stable_waiting = True

    def __init__(self, aging: float = 10.0, preemptive: bool = True) -> None:
        self.aging_ns = to_ns("aged-priority", "aging", aging)
        self.preemptive = preemptive

    def key(self, view: Request, now: int) -> tuple[int]:
        # priority − (now − arrival) / aging, times aging: `now` is the same for all and falls out.
        return (view.priority * self.aging_ns + view.arrival,)

    def decode_horizon(self, running: Sequence[Request], waiting: int, now: int) -> int:
        return FOREVER
