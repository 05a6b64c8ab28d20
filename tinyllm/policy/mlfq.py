"""Skip-join multi-level feedback queue: short jobs first without knowing lengths (Wu et al., FastServe, 2023)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tinyllm.errors import InputError
from tinyllm.policy.base import SchedulingPolicy
from tinyllm.policy.request import Request
from tinyllm.policy.units import to_ns

StepTimeEstimator = Callable[[int], int]
"""Tokens that a step computes of one request → ns that it is believed to take, at least 1."""


def linear_estimator(base: float = 0.01, per_token: float = 5e-5) -> StepTimeEstimator:
    """`base` + `per_token` · tokens, in seconds. A belief: the simulator and the device know better."""
    base_ns, per_token_ns = to_ns("mlfq", "base", base), to_ns("mlfq", "per_token", per_token)
    return lambda num_tokens: base_ns + per_token_ns * num_tokens


@dataclass
class _Progress:
    """What MLFQ knows of a request: its level, and the service and prompt tokens that it had there."""

    level: int
    used_ns: int
    prefilled: int
    last_served: int


class MLFQ(SchedulingPolicy):
    """Levels from 0, the most urgent; the quantum of a level is twice that of the level before.

    A request joins the first level whose quantum covers its estimated first step (that of its whole prompt),
    and drops a level when its estimated service there has used up the quantum; the last level has no end.
    One that was not served for `promote_after` seconds returns to level 0 with a quantum anew.

    Args:
        num_levels: number of levels.
        quantum: seconds of estimated service on level 0.
        promote_after: seconds without service after which a request is promoted.
        base, per_token: seconds of the linear step time estimate, for the command line.
        preemptive: whether a request of a smaller level takes the seat or blocks of one of a larger.
        estimator: a step time estimate to inject instead. Whatever it is, policies never see the simulator's.
    """

    def __init__(
        self,
        num_levels: int = 8,
        quantum: float = 0.02,
        promote_after: float = 30.0,
        base: float = 0.01,
        per_token: float = 5e-5,
        preemptive: bool = True,
        estimator: StepTimeEstimator | None = None,
    ) -> None:
        if not 1 <= num_levels <= 30:
            raise InputError(f"mlfq: num_levels {num_levels}: give a whole number from 1 to 30")
        if estimator is not None and not callable(estimator):
            raise InputError("mlfq: estimator: a function, from Python only; here set base and per_token")
        first = to_ns("mlfq", "quantum", quantum)
        self.quanta = [first << level for level in range(num_levels)]
        self.promote_after_ns = to_ns("mlfq", "promote_after", promote_after)
        self.preemptive = preemptive
        self.estimate = estimator or linear_estimator(base, per_token)
        self._progress: dict[str, _Progress] = {}

    def key(self, view: Request, now: int) -> tuple[int]:
        progress = self._progress[view.request_id]
        return (0 if self._is_promoted(progress, now) else progress.level,)

    def on_arrival(self, view: Request, now: int) -> None:
        first_step = self.estimate(view.num_prompt_tokens)
        level = next((i for i, quantum in enumerate(self.quanta) if quantum >= first_step), self._last)
        self._progress[view.request_id] = _Progress(level, 0, 0, now)

    def on_tokens(self, view: Request, prefill: int, decode: int, now: int) -> None:
        progress = self._progress[view.request_id]
        if self._is_promoted(progress, now):
            progress.level = progress.used_ns = 0
        progress.last_served = now
        progress.used_ns += self._prefill_ns(progress, prefill) if prefill else 0
        # The first token comes out of the step that ends the prompt, which is charged.
        if decode and view.num_output_tokens > decode:
            progress.used_ns += decode * self.estimate(1)
        if progress.used_ns > self.quanta[progress.level] and progress.level < self._last:
            progress.level += 1
            progress.used_ns = 0

    def on_finish(self, view: Request, now: int) -> None:
        del self._progress[view.request_id]

    def level(self, request_id: str) -> int:
        """The level of an unfinished request, a promotion that waits for its next service left out."""
        return self._progress[request_id].level

    @property
    def _last(self) -> int:
        return len(self.quanta) - 1

    def _is_promoted(self, progress: _Progress, now: int) -> bool:
        return now - progress.last_served >= self.promote_after_ns

    def _prefill_ns(self, progress: _Progress, num_tokens: int) -> int:
        """Chunks add up to the estimate of the whole: cutting a prompt must not use up its quantum."""
        before = self.estimate(progress.prefilled) if progress.prefilled else 0
        progress.prefilled += num_tokens
        return self.estimate(progress.prefilled) - before
