"""Virtual Token Counter: fair shares of service among tenants (Sheng et al., OSDI 2024)."""

from __future__ import annotations

from tinyllm.errors import InputError
from tinyllm.policy.base import SchedulingPolicy
from tinyllm.policy.request import Request, RequestState


class VTC(SchedulingPolicy):
    """The tenant that was served least goes first; within a tenant, by arrival.

    Each tenant has a counter of weighted tokens served: `input_weight` a prompt token when it is scheduled
    for the first time (hits of the prefix cache and recomputed tokens are free), `output_weight` a sampled
    token. A tenant that arrives without a waiting request is lifted to the smallest counter of those that
    have one or, if nobody waits, to that of the last one whose request left the queue: idling earns no
    credit.

    Args:
        input_weight, output_weight: wp and wq of the paper, whole numbers.
    """

    def __init__(self, input_weight: int = 1, output_weight: int = 2) -> None:
        for name, weight in (("input_weight", input_weight), ("output_weight", output_weight)):
            if weight < 0:
                raise InputError(f"vtc: {name} {weight}: give a whole number of at least 0")
        self.input_weight = input_weight
        self.output_weight = output_weight
        self.counters: dict[str | None, int] = {}
        self._in_system: dict[str, Request] = {}
        self._last_to_leave_queue: str | None = None

    def key(self, view: Request, now: int) -> tuple[int]:
        return (self.counters[view.tenant],)

    def waiting_group(self, view: Request) -> str | None:
        return view.tenant

    def on_arrival(self, view: Request, now: int) -> None:
        backlogged = [v.tenant for v in self._in_system.values() if v.state is not RequestState.RUNNING]
        if view.tenant not in backlogged:
            if backlogged:
                floor = min(self.counters[tenant] for tenant in backlogged)
            else:
                floor = self.counters.get(self._last_to_leave_queue, 0)
            self.counters[view.tenant] = max(self.counters.get(view.tenant, 0), floor)
        self._in_system[view.request_id] = view

    def on_tokens(self, view: Request, prefill: int, decode: int, now: int) -> None:
        self.counters[view.tenant] += self.input_weight * prefill + self.output_weight * decode
        # Its first chunk since it was admitted: later ones are no sign of leaving the queue.
        if prefill and view.num_computed_tokens == view.num_cached_tokens:
            self._last_to_leave_queue = view.tenant

    def on_finish(self, view: Request, now: int) -> None:
        del self._in_system[view.request_id]
