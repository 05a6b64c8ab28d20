"""A token bucket for each tenant: who has spent more than its rate waits while others run."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllm.errors import InputError
from tinyllm.policy.base import FOREVER, SchedulingPolicy
from tinyllm.policy.request import Request, RequestState
from tinyllm.policy.units import NS_PER_S


class RateLimit(SchedulingPolicy):
    """By arrival; the waiting requests of a tenant whose bucket is empty are held.

    Each tenant has a bucket of `burst` tokens, which fills by `rate` tokens a second. Prompt tokens computed for
    the first time and sampled tokens are taken from it, below zero if need be: running requests are never
    held, since they would keep their blocks.

    A held request comes back when the policy is asked the next time, and without a step nobody asks: there is
    no timer. So nobody is held while nothing runs, or the engine would stall.

    Args:
        rate: tokens a second of each tenant.
        burst: tokens that a tenant may save up.
    """

    def __init__(self, rate: int = 1000, burst: int = 4096) -> None:
        for option, value in (("rate", rate), ("burst", burst)):
            if value < 1:
                raise InputError(f"rate-limit: {option} {value}: give a whole number of at least 1")
        self.rate = rate
        self.burst = burst
        # In 10⁻⁹ tokens, of which `rate` come every nanosecond: no rounding. With the time of the last entry.
        self._buckets: dict[str | None, tuple[int, int]] = {}
        self._unfinished: dict[str, Request] = {}

    def key(self, view: Request, now: int) -> tuple[int] | None:
        if view.state is RequestState.RUNNING or self._balance(view.tenant, now) > 0:
            return (0,)
        return None if self._is_busy() else (1,)

    def waiting_group(self, view: Request) -> str | None:
        return view.tenant

    def on_arrival(self, view: Request, now: int) -> None:
        self._unfinished[view.request_id] = view

    def on_tokens(self, view: Request, prefill: int, decode: int, now: int) -> None:
        left = self._balance(view.tenant, now) - (prefill + decode) * NS_PER_S
        self._buckets[view.tenant] = (left, now)

    def on_finish(self, view: Request, now: int) -> None:
        del self._unfinished[view.request_id]

    def decode_horizon(self, running: Sequence[Request], waiting: int, now: int) -> int:
        return FOREVER

    def has_spent(self, tenant: str | None) -> bool:
        """Whether anything was ever taken from the bucket of a tenant."""
        return tenant in self._buckets

    def tokens_left(self, tenant: str | None, now: int) -> float:
        """What is in the bucket of a tenant, in tokens; negative where it is in debt."""
        return self._balance(tenant, now) / NS_PER_S

    def _balance(self, tenant: str | None, now: int) -> int:
        full = self.burst * NS_PER_S
        left, since = self._buckets.get(tenant, (full, now))
        return min(full, left + self.rate * (now - since))

    def _is_busy(self) -> bool:
        # In order of arrival, so that one that runs is found soon.
        return any(view.state is RequestState.RUNNING for view in self._unfinished.values())
