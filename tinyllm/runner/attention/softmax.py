"""The softmax of one row of scores, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tinyllm.models.panels import FASTMATH
from tinyllm.models.tile import exponential


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def exponentiate(scores: Any, scale: Any) -> Any:
    """Turn scores float32 [n], n ≥ 1, in place into e to `scale` times their distance from the largest.

    The largest is taken off first, so that no exponential overflows. A score of −∞ becomes 0.

    Returns:
        The sum of what is then there.
    """
    largest = _largest(scores)
    total = np.float32(0.0)
    for i in range(len(scores)):
        scores[i] = exponential((scores[i] - largest) * scale)
        total += scores[i]
    return total


# A NaN among the scores may make the largest anything: it makes the sum NaN, and so every weight, all the same.
@njit(fastmath=FASTMATH | {"nnan"}, cache=True)  # type: ignore[untyped-decorator]
def _largest(scores: Any) -> Any:
    largest = scores[0]
    for i in range(1, len(scores)):
        largest = max(largest, scores[i])
    return largest
