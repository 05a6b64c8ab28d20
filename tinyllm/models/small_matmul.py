"""The product of a few rows with a large matrix, for the CPU: the matrix is read once, whatever the rows.

A library's matrix product is made for many rows. With a few, what counts is how fast the weights come out of memory:
docs/performance.md has the measurements that chose the limits.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from numba import njit, prange

# Sums may be reordered, or no loop over channels becomes a vector instruction. NaN and infinity stay what they are.
FASTMATH: Final = {"reassoc", "contract", "arcp", "nsz"}

_PIECES: Final = 16
"""Parts of the matrix that threads share out: more than any small machine's threads, so that each has some."""


def use_threads(number: int) -> None:
    """Let compiled code use as many threads as torch does, so that one setting governs both."""
    numba.set_num_threads(min(number, numba.config.NUMBA_NUM_THREADS))


@njit(parallel=True, fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def small_matmul(x: Any, weight: Any, out: Any) -> None:
    """`out = x @ weight.T`, all float32 and contiguous: x [rows, k], weight [n, k], out [rows, n]."""
    n = weight.shape[0]
    for piece in prange(_PIECES):
        first, last = n * piece // _PIECES, n * (piece + 1) // _PIECES
        _columns(x, weight, out, first, last)


@njit(parallel=True, fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def add_small_matmul(x: Any, weight: Any, out: Any) -> None:
    """`out += x @ weight.T`."""
    n = weight.shape[0]
    for piece in prange(_PIECES):
        first, last = n * piece // _PIECES, n * (piece + 1) // _PIECES
        part = np.empty((x.shape[0], last - first), np.float32)
        _columns(x, weight[first:last], part, 0, last - first)
        for row in range(x.shape[0]):
            for column in range(last - first):
                out[row, first + column] += part[row, column]


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _columns(x: Any, weight: Any, out: Any, first: Any, last: Any) -> None:
    """The columns [first, last) of the product: a row of weights stays in the nearest cache for all rows of x."""
    rows = x.shape[0]
    for column in range(first, last):
        row = 0
        while row + 7 < rows:
            _eight(x, weight[column], out, row, column)
            row += 8
        while row + 3 < rows:
            _four(x, weight[column], out, row, column)
            row += 4
        while row < rows:
            total = np.float32(0.0)
            for k in range(x.shape[1]):
                total += x[row, k] * weight[column, k]
            out[row, column] = total
            row += 1


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _eight(x: Any, w: Any, out: Any, row: Any, column: Any) -> None:
    """Eight sums at once, which vector registers hold beside what they need."""
    x0, x1, x2, x3 = x[row], x[row + 1], x[row + 2], x[row + 3]
    x4, x5, x6, x7 = x[row + 4], x[row + 5], x[row + 6], x[row + 7]
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = np.float32(0.0)
    for k in range(x.shape[1]):
        a = w[k]
        s0 += x0[k] * a
        s1 += x1[k] * a
        s2 += x2[k] * a
        s3 += x3[k] * a
        s4 += x4[k] * a
        s5 += x5[k] * a
        s6 += x6[k] * a
        s7 += x7[k] * a
    out[row, column], out[row + 1, column], out[row + 2, column], out[row + 3, column] = s0, s1, s2, s3
    out[row + 4, column], out[row + 5, column], out[row + 6, column], out[row + 7, column] = s4, s5, s6, s7


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _four(x: Any, w: Any, out: Any, row: Any, column: Any) -> None:
    x0, x1, x2, x3 = x[row], x[row + 1], x[row + 2], x[row + 3]
    s0 = s1 = s2 = s3 = np.float32(0.0)
    for k in range(x.shape[1]):
        a = w[k]
        s0 += x0[k] * a
        s1 += x1[k] * a
        s2 += x2[k] * a
        s3 += x3[k] * a
    out[row, column], out[row + 1, column], out[row + 2, column], out[row + 3, column] = s0, s1, s2, s3
