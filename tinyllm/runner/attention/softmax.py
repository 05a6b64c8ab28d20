"""The softmax of one row of scores, compiled."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

from tinyllm.models.panels import FASTMATH
from tinyllm.models.tile import exponential

_LANES: Final = 16
"""Maxima kept side by side, so that looking for the largest is vector work."""


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def exponentiate(scores: Any, scale: Any) -> Any:
    """Turn scores float32 [n], n ≥ 1, in place into e to `scale` times their distance from the largest.

    The largest is taken off first, so that no exponential overflows. A score of −∞ becomes 0.

    Returns:
        The sum of what is then there.
    """
    n = len(scores)
    lanes = np.full(_LANES, -np.inf, np.float32)
    whole = n // _LANES * _LANES
    for first in range(0, whole, _LANES):
        for lane in range(_LANES):
            score = scores[first + lane]
            lanes[lane] = score if score > lanes[lane] else lanes[lane]
    largest = lanes[0]
    for lane in range(_LANES):
        largest = max(largest, lanes[lane])
    for i in range(whole, n):
        largest = max(largest, scores[i])
    total = np.float32(0.0)
    for i in range(n):
        scores[i] = exponential((scores[i] - largest) * scale)
        total += scores[i]
    return total
