"""Matrix products on the CPU by compiled code of our own, with the weights in panels, for one row or a thousand.

A panel holds sixteen rows of a weight matrix, channel by channel, so that a tile of the product reads it from front to
back. A weight is read from memory once for all rows of x: what counts for few rows is how fast that goes, for many how
full the arithmetic units are; docs/performance.md has the measurements.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from numba import njit, prange
from torch import Tensor

from tinyllm.models.exponential import exponential
from tinyllm.models.tile import PANEL, multiply_tile

# Sums may be reordered, or no loop over channels becomes a vector instruction. NaN and infinity stay what they are.
FASTMATH: Final = {"reassoc", "contract", "arcp", "nsz"}

_PIECES: Final = 16
"""Parts of the work that threads share out: more than any small machine's threads, so that each has some."""

_BLOCK: Final = 1 << 15
"""Numbers of x that are multiplied with a panel before the next one: 128 KiB, which stay in a core's own cache."""

_FEW: Final = 1 << 17
"""Numbers of x up to which all are one block, since each further one reads the weights again."""


def use_threads(number: int) -> None:
    """Let compiled code use as many threads as torch does, so that one setting governs both."""
    numba.set_num_threads(min(number, numba.config.NUMBA_NUM_THREADS))


def panels_shape(n: int, k: int) -> tuple[int, int, int]:
    """Shape of a weight [n, k] in panels: [⌈n / PANEL⌉, k, PANEL]."""
    return -(-n // PANEL), k, PANEL


def pack(weight: Tensor, panels: Tensor) -> None:
    """Fill panels, contiguous and of the shape `panels_shape`, from a weight; rows that the last one lacks are zero."""
    n, k = weight.shape
    whole = n // PANEL
    panels[:whole] = weight[: whole * PANEL].view(whole, PANEL, k).transpose(1, 2)
    panels[whole:] = 0
    panels[whole:, :, : n % PANEL] = weight[whole * PANEL :].t()


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def take_rows(panels: Any, indices: Any, out: Any) -> None:
    """Fill `out` [n, k] with rows of a weight in panels, at int64 indices [n]. Raises `IndexError` outside of it."""
    for i in range(len(indices)):
        if indices[i] < 0 or indices[i] >= len(panels) * PANEL:
            raise IndexError("a row outside of the weight was asked for")
        panel, lane = indices[i] // PANEL, indices[i] % PANEL
        for channel in range(panels.shape[1]):
            out[i, channel] = panels[panel, channel, lane]


@njit(parallel=True, fastmath=FASTMATH, nogil=True, cache=True)  # type: ignore[untyped-decorator]
def panel_matmul(x: Any, panels: Any, out: Any, adds: Any) -> None:
    """`out = x @ weight.T`, or `out +=` it if `adds` is not 0.

    Args:
        x: float32 [rows, k].
        panels: of the weight [n, k].
        out: float32 [rows, n rounded up to whole panels].
    """
    rows, k = x.shape
    block = _rows_of_a_block(rows, k)
    pieces = min(len(panels), _PIECES)
    for piece in prange(pieces):
        for first in range(0, rows, block):
            size = min(block, rows - first)
            x_address = x[first:].ctypes.data
            for panel in range(len(panels) * piece // pieces, len(panels) * (piece + 1) // pieces):
                weights = panels[panel].ctypes.data
                place = out[first:, panel * PANEL :].ctypes.data
                multiply_tile(
                    x_address, k, size, weights, weights + 4 * k * PANEL, k, place, out.shape[1], adds
                )


@njit(parallel=True, fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def gated_panel_matmul(x: Any, panels: Any, bias: Any, out: Any) -> None:
    """`out = silu(gate) · up`, where `x @ weight.T + bias` is gate and up side by side.

    Args:
        x: float32 [rows, k].
        panels: of the weight [2 · n, k].
        bias: float32 [2 · n], or empty.
        out: float32 [rows, n]; n is a multiple of `PANEL`.
    """
    rows, k = x.shape
    half = len(panels) // 2
    block = _rows_of_a_block(rows, k)
    pieces = min(half, _PIECES)
    for piece in prange(pieces):
        gate = np.empty((min(block, rows), PANEL), np.float32)
        up = np.empty((min(block, rows), PANEL), np.float32)
        for first in range(0, rows, block):
            size = min(block, rows - first)
            x_address = x[first:].ctypes.data
            for panel in range(half * piece // pieces, half * (piece + 1) // pieces):
                weights, others = panels[panel].ctypes.data, panels[half + panel].ctypes.data
                multiply_tile(x_address, k, size, weights, others, k, gate.ctypes.data, PANEL, 0)
                following = weights + 4 * k * PANEL
                multiply_tile(x_address, k, size, others, following, k, up.ctypes.data, PANEL, 0)
                column = panel * PANEL
                if len(bias):
                    _add_row(gate[:size], bias[column:])
                    _add_row(up[:size], bias[half * PANEL + column :])
                for row in range(size):
                    for i in range(PANEL):
                        value = gate[row, i]
                        sigmoid = np.float32(1.0) / (np.float32(1.0) + exponential(-value))
                        out[first + row, column + i] = value * sigmoid * up[row, i]


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _rows_of_a_block(rows: Any, k: Any) -> Any:
    return max(1, rows) if rows * k <= _FEW else max(24, _BLOCK // k // 24 * 24)


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _add_row(values: Any, row: Any) -> None:
    for i in range(len(values)):
        for j in range(PANEL):
            values[i, j] += row[j]
