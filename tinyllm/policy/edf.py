"""Earliest deadline first, for deadlines of the first token, of the last one, or of every token."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllm.errors import InputError
from tinyllm.policy.base import FOREVER, SchedulingPolicy
from tinyllm.policy.request import Request
from tinyllm.policy.units import to_ns

DEADLINES = ("ttft", "e2e", "token")
EXPIRED = ("keep", "last")


class EDF(SchedulingPolicy):
    """What is due first goes first (Liu and Layland, JACM 20(1), 1973); what is never due goes after it.

    Args:
        deadline: `ttft`, by the time at which the first token is due; `e2e`, the last one; `token`, the next
            one, token n (from 0) being due n · `tpot` after the first.
        tpot: seconds from token to token, for `deadline="token"`.
        expired: what becomes of a request that is late. `keep`: it goes by its deadline as before, so in front;
            `last`: behind all others, so that those that can still be in time are. Nothing is dropped.
        preemptive: whether a request that is due earlier takes the seat or blocks of a running one.
    """

    def __init__(
        self, deadline: str = "ttft", tpot: float = 0.05, expired: str = "keep", preemptive: bool = True
    ) -> None:
        for option, value, choices in (("deadline", deadline, DEADLINES), ("expired", expired, EXPIRED)):
            if value not in choices:
                raise InputError(f"edf: {option} {value}: choose one of {', '.join(choices)}")
        self.deadline = deadline
        self.slo = "e2e_slo" if deadline == "e2e" else "ttft_slo"
        self.tpot_ns = to_ns("edf", "tpot", tpot)
        self.expired = expired
        self.preemptive = preemptive
        # A waiting request gains no token, so that only time could move its key.
        self.stable_waiting = expired == "keep"

    def key(self, view: Request, now: int) -> tuple[int, int]:
        due = self._due(view)
        if due is None:
            return (1, 0)
        if self.expired == "last" and now > due and not self._has_met(view):
            return (2, due)
        return (0, due)

    def decode_horizon(self, running: Sequence[Request], waiting: int, now: int) -> int:
        return FOREVER if self.expired == "keep" and self.deadline != "token" else 1

    def _due(self, view: Request) -> int | None:
        if self.deadline == "e2e":
            return view.e2e_deadline
        if self.deadline == "ttft" or view.ttft_deadline is None:
            return view.ttft_deadline
        return view.ttft_deadline + view.num_output_tokens * self.tpot_ns

    def _has_met(self, view: Request) -> bool:
        """Whether nothing of the request is due any more; once it streams, its first token is not late again."""
        return self.deadline == "ttft" and view.num_output_tokens > 0
