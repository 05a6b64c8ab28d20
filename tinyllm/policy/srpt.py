"""Shortest remaining processing time, by predicted output lengths."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllm.errors import InputError
from tinyllm.policy.base import SchedulingPolicy
from tinyllm.policy.request import Request


class SRPT(SchedulingPolicy):
    """Least work left first (Schrage 1968), in tokens: those still to compute, plus `decode_weight` times the
    output tokens that the prediction leaves.

    Tokens to compute are the rest of the prompt and, after a preemption, everything that was lost (the
    recompute debt). A request that outlives its prediction counts one token left. Without a prediction the
    declared `max_tokens` stands in for it.

    Args:
        preemptive: whether a shorter waiting request takes the seat or blocks of a longer running one.
        decode_weight: work of an output token, in prefill tokens. One decoded token occupies a seat for a
            whole step, one prefill token only a share of it.
    """

    stable_waiting = True

    def __init__(self, preemptive: bool = True, decode_weight: int = 1) -> None:
        if decode_weight < 1:
            raise InputError(f"srpt: decode_weight {decode_weight}: give a whole number of at least 1")
        self.preemptive = preemptive
        self.decode_weight = decode_weight

    def key(self, view: Request, now: int) -> tuple[int]:
        to_compute = view.num_tokens - view.num_computed_tokens
        return (to_compute + self.decode_weight * self._predicted_left(view),)

    def decode_horizon(self, running: Sequence[Request], waiting: int, now: int) -> int:
        # While all decode, every key falls by the same amount a step, until a prediction runs out.
        if all(view.is_decoding for view in running):
            return max(1, min((self._predicted_left(view) for view in running), default=1))
        return 1

    @staticmethod
    def _predicted_left(view: Request) -> int:
        predicted = view.predicted_output_tokens
        total = view.max_tokens if predicted is None else predicted
        return max(1, total - view.num_output_tokens)
