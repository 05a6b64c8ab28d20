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
        # Of each tenant, the unfinished requests in order of arrival.
        self._requests: dict[str | None, dict[str, Request]] = {}
        self._last_to_leave_queue: str | None = None

    def key(self, view: Request, now: int) -> tuple[int]:
        return (self.counters[view.tenant],)

    def waiting_group(self, view: Request) -> str | None:
        return view.tenant

    def on_arrival(self, view: Request, now: int) -> None:
        if not self._is_backlogged(view.tenant):
            backlogged = [tenant for tenant in self._requests if self._is_backlogged(tenant)]
            if backlogged:
                floor = min(self.counters[tenant] for tenant in backlogged)
            else:
                floor = self.counters.get(self._last_to_leave_queue, 0)
            self.counters[view.tenant] = max(self.counters.get(view.tenant, 0), floor)
        self._requests.setdefault(view.tenant, {})[view.request_id] = view

    def on_tokens(self, view: Request, prefill: int, decode: int, now: int) -> None:
        self.counters[view.tenant] += self.input_weight * prefill + self.output_weight * decode
        # Its first chunk since it was admitted: later ones are no sign of leaving the queue.
        if prefill and view.num_computed_tokens == view.num_cached_tokens:
            self._last_to_leave_queue = view.tenant

    def on_finish(self, view: Request, now: int) -> None:
        mine = self._requests[view.tenant]
        del mine[view.request_id]
        if not mine:
            del self._requests[view.tenant]

    def _is_backlogged(self, tenant: str | None) -> bool:
        # The latest first, which most likely waits: all n are looked at only if all of them run.
        mine = reversed(self._requests.get(tenant, {}).values())
        return any(view.state is not RequestState.RUNNING for view in mine)
