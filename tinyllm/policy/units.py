"""Seconds that a user writes, as the integer nanoseconds that policies count in."""

from __future__ import annotations

from tinyllm.errors import InputError

NS_PER_S = 1_000_000_000


def to_ns(policy: str, option: str, seconds: float) -> int:
    """A duration in whole nanoseconds.

    Raises:
        InputError: not within 1 ns and 10⁹ s; names the policy and its argument.
    """
    if not 1e-9 <= seconds <= 1e9:
        raise InputError(f"{policy}: {option} {seconds:g}: give seconds, more than 0 and at most 1e9")
    return round(seconds * NS_PER_S)
