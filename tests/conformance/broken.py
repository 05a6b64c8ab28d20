"""Policies with one planted fault each. Every one looks reasonable at a glance."""

from __future__ import annotations

import inspect
import random
from collections.abc import Sequence

from tinyllm.policy import FOREVER, Request, SchedulingPolicy
from tinyllm.policy.vtc import VTC


class LastInFirstOut(SchedulingPolicy):
    """Starving: as long as requests come, the first never gets a seat."""

    def key(self, view: Request, now: int) -> tuple[int]:
        return (-view.arrival,)


class LeastProgressFirst(SchedulingPolicy):
    """Starving: two requests take each other's seat for ever, each losing what it had computed."""

    preemptive = True

    def key(self, view: Request, now: int) -> tuple[int]:
        return (view.num_computed_tokens,)


class Lottery(SchedulingPolicy):
    """Non-deterministic: draws from a generator that nobody seeded."""

    def key(self, view: Request, now: int) -> tuple[float]:
        return (random.random(),)


class Clairvoyant(SchedulingPolicy):
    """Reads the hidden length: climbs the stack to whoever drives the scheduler and looks into its pockets."""

    def key(self, view: Request, now: int) -> tuple[int]:
        frame = inspect.currentframe()
        while frame is not None:
            outputs = getattr(frame.f_locals.get("self"), "outputs", None)
            if outputs is not None and view.request_id in outputs._last_token:
                return (outputs._last_token[view.request_id],)
            frame = frame.f_back
        return (view.max_tokens,)


class Grudge(SchedulingPolicy):
    """Holds for ever: who lost its blocks once is not let in again."""

    def key(self, view: Request, now: int) -> tuple[int] | None:
        return None if view.num_preemptions else (view.arrival,)


class Corrector(SchedulingPolicy):
    """Writes to a view: who outgrows its prediction gets a longer one, of which the log knows nothing."""

    def key(self, view: Request, now: int) -> tuple[int]:
        return (view.predicted_output_tokens or 0,)

    def on_tokens(self, view: Request, prefill: int, decode: int, now: int) -> None:
        if view.predicted_output_tokens is not None:
            view.predicted_output_tokens = max(view.predicted_output_tokens, view.num_output_tokens + 1)


class Impatient(SchedulingPolicy):
    """Unstable order: promises keys that stand still while requests wait, and lets them fall."""

    stable_waiting = True

    def key(self, view: Request, now: int) -> tuple[int]:
        return (view.num_prompt_tokens * 1_000_000 - 2 * (now - view.arrival) * view.priority,)


class FalseHorizon(SchedulingPolicy):
    """Unstable order: promises that running keys never change order, and they do."""

    def key(self, view: Request, now: int) -> tuple[int]:
        return (view.num_tokens - view.num_computed_tokens,)

    def decode_horizon(self, running: Sequence[Request], waiting: int, now: int) -> int:
        return FOREVER


class Refunding(VTC):
    """Negative charge: gives back the prompt's charge at the end, so that counters fall."""

    def on_finish(self, view: Request, now: int) -> None:
        super().on_finish(view, now)
        self.counters[view.tenant] -= view.num_prompt_tokens
