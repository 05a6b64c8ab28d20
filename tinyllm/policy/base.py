"""The interface of a scheduling policy: an order over requests, and what it hears of their progress."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final

from tinyllm.policy.request import Request

Key = tuple[Any, ...]
"""A sort key: tuples of one policy compare with each other; the smaller runs first."""

FOREVER: Final = 1 << 62
"""A `decode_horizon` that does not end before the next admission."""


class SchedulingPolicy:
    """Decides who comes first. Subclass it, write `key`, and run it by `--policy module:Class`.

    A view is a `Request`: read its counters, write nothing. `now` is integer nanoseconds since the start of
    the run. A policy reads no clock, draws no random number that it was not given, and does no I/O.

    Attributes:
        preemptive: may a waiting request take the seat or the blocks of a running one whose key is larger?
        overtake: may a waiting request pass one that lacks blocks? False: the first one blocks the rest.
        stable_waiting: a promise that the key of a request does not change while it waits; the queue is
            then kept sorted instead of asked anew.
        slo: the option whose deadlines the order goes by, `ttft_slo` or `e2e_slo`: a replay needs it.
    """

    preemptive: bool = False
    overtake: bool = False
    stable_waiting: bool = False
    slo: str | None = None

    def key(self, view: Request, now: int) -> Key | None:
        """Smaller runs first; ties go by arrival, then by order of submission.

        None holds the request: a waiting one is passed over without blocking others, a running one keeps
        its blocks, is not scheduled, and is the first victim when blocks are missing.
        """
        raise NotImplementedError

    def waiting_group(self, view: Request) -> Hashable:
        """Overridden, a promise that waiting requests of one group have equal keys at any time, and that a
        request does not change its group: only the first of each group is then asked for its key.

        VTC groups by tenant. A promise is never needed, it makes long queues cheaper.
        """
        raise NotImplementedError

    def on_arrival(self, view: Request, now: int) -> None:
        """A request joins the waiting queue for the first time."""

    def on_tokens(self, view: Request, prefill: int, decode: int, now: int) -> None:
        """The request is served: `prefill` prompt tokens computed for the first time, when they are scheduled
        (neither prefix hits nor recomputed tokens count), or `decode` tokens sampled, when their step ends."""

    def on_finish(self, view: Request, now: int) -> None:
        """The request has ended, whatever the reason. Called once for every request that arrived."""

    def decode_horizon(self, running: Sequence[Request], waiting: int, now: int) -> int:
        """For how many steps, this one included, the order of the running keys surely stands, and none of them
        turns None, if no request is admitted. 1, always right, sorts in every step.

        Args:
            running: the running requests that are not held.
            waiting: number of waiting requests.
        """
        return 1
