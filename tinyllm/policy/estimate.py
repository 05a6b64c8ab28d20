"""A belief of how long a step takes, for decisions that need one. Never the simulator's own cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tinyllm.errors import InputError

_PER_NS = 1_000_000
"""Coefficients are kept in femtoseconds: sums are exact, and a coefficient may lie well under a nanosecond."""


@dataclass(frozen=True)
class StepEstimate:
    """base + per_token · tokens + per_seq · sequences + per_context · KV entries read, in 1e-15 s."""

    base: int
    per_token: int
    per_seq: int = 0
    per_context: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `BASE:PER_TOKEN[:PER_SEQ[:PER_CONTEXT_TOKEN]]` in seconds, e.g. `0.02:5e-5`.

        Raises:
            InputError: not of this form, or a number that is negative or over 1e6.
        """
        try:
            numbers = [float(part) for part in text.split(":")]
        except ValueError:
            numbers = []
        if not 2 <= len(numbers) <= 4 or not all(0 <= number <= 1e6 for number in numbers):
            raise InputError(
                f"--step-estimate {text}: write BASE:PER_TOKEN[:PER_SEQ[:PER_CONTEXT_TOKEN]] in seconds, e.g. 0.02:5e-5"
            )
        return cls(*(round(number * 1e15) for number in numbers))

    def step_ns(self, num_tokens: int, num_seqs: int, context_tokens: int) -> int:
        """What such a step is believed to take, in ns."""
        return (
            self.base
            + self.per_token * num_tokens
            + self.per_seq * num_seqs
            + self.per_context * context_tokens
        ) // _PER_NS

    def most_tokens(self, limit_ns: int, num_seqs: int, context_tokens: int) -> int:
        """The most tokens of a step of these sequences that is believed to take at most `limit_ns`; may be
        negative. Where tokens cost nothing, more than any step has."""
        left = (limit_ns + 1) * _PER_NS - 1 - self.per_seq * num_seqs - self.per_context * context_tokens
        left -= self.base
        return left // self.per_token if self.per_token else (1 << 62 if left >= 0 else -1)
