"""Matrix products on the CPU by compiled code of our own, with the weights in panels, for one row or a thousand.

A panel holds sixteen rows of a weight matrix, channel by channel, so that a tile of the product reads it from front to
back. A weight is read from memory once for all rows of x: what counts for few rows is how many bytes that are, for many
how full the arithmetic units are; docs/performance.md has the measurements. Weights kept in fewer bytes than float32
(`tinyllm.models.formats`) become float32 a panel at a time, while the panel before it is multiplied.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numba
import numpy as np
import torch
from numba import njit, prange, types
from numba.extending import overload

from tinyllm.models.exponential import gate as apply_gate
from tinyllm.models.formats.base import PANEL
from tinyllm.models.tile import multiply_tile, prepare_panel, tile_address

# Sums may be reordered, or no loop over channels becomes a vector instruction. NaN and infinity stay what they are.
FASTMATH: Final = {"reassoc", "contract", "arcp", "nsz"}

_BLOCK: Final = 1 << 15
"""Numbers of x that are multiplied with a panel before the next one: 128 KiB, which stay in a core's own cache."""

_FEW: Final = 1 << 17
"""Numbers of x up to which all are one block, since each further one reads the panels again."""

_PART: Final = 1 << 16
"""Numbers of a weight that several blocks are multiplied with in turn: 256 KiB, which stay in that cache as well."""

_LINE: Final = 64
"""Bytes of a cache line: loads across two lines take twice as long."""


def use_threads(number: int) -> None:
    """Let compiled code use as many threads as torch does, so that one setting governs both."""
    numba.set_num_threads(min(number, numba.config.NUMBA_NUM_THREADS))


class Means(NamedTuple):
    """With what a product of a weight in some format is computed.

    Attributes:
        threads: that share the work.
        tile: the address of the tile's code for the format.
        plain_tile: the one for float32.
    """

    threads: int
    tile: int
    plain_tile: int

    @classmethod
    def of(cls, dtype: torch.dtype) -> Means:
        """Those for panels whose memory is of that type, with torch's number of threads."""
        threads = torch.get_num_threads()
        use_threads(threads)
        return cls(threads, tile_address(dtype), tile_address(torch.float32))


@njit(cache=True)  # type: ignore[untyped-decorator]
def _room(panels: Any, num_panels: Any, k: Any) -> Any:
    """Room for the numbers of panels of k channels and for a line before them; empty if they are read in place."""
    return np.empty(num_panels * k * PANEL + _LINE // 4 if panels.itemsize < 4 else 0, np.float32)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _start(room: Any) -> Any:
    """The address in a room from which on panels lie."""
    return (room.ctypes.data + _LINE - 1) // _LINE * _LINE


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def take_rows(panels: Any, indices: Any, out: Any, means: Any) -> None:
    """Fill `out` [n, k] with rows of a weight in panels, at int64 indices [n]. Raises `IndexError` outside of it."""
    k = out.shape[1]
    for i in range(len(indices)):
        if indices[i] < 0 or indices[i] >= len(panels) * PANEL:
            raise IndexError("a row outside of the weight was asked for")
        panel, lane = indices[i] // PANEL, indices[i] % PANEL
        numbers = _as_float32(panels[panel : panel + 1], k, means.tile)
        for channel in range(k):
            out[i, channel] = numbers[0, channel, lane]


@njit(parallel=True, fastmath=FASTMATH, nogil=True, cache=True)  # type: ignore[untyped-decorator]
def panel_matmul(x: Any, panels: Any, out: Any, adds: Any, means: Any) -> None:
    """`out = x @ weight.T`, or `out +=` it if `adds` is not 0.

    Args:
        x: float32 [rows, k].
        panels: of the weight [n, k], in any format.
        out: float32 [rows, n rounded up to whole panels].
        means: for the format.
    """
    rows, k = x.shape
    block = _rows_of_a_block(rows, k)
    pieces = _pieces(len(panels), k, block < rows, means.threads)
    for piece in prange(pieces):
        first, last = len(panels) * piece // pieces, len(panels) * (piece + 1) // pieces
        part = panels[first:last]
        if block < rows:
            numbers = _as_float32(part, k, means.tile)
            for row in range(0, rows, block):
                _multiply(x[row : row + block], numbers, first, out[row:], adds, means.plain_tile)
        else:
            _multiply(x, part, first, out, adds, means.tile)


@njit(parallel=True, fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def gated_panel_matmul(x: Any, panels: Any, bias: Any, out: Any, means: Any) -> None:
    """`out = silu(gate) · up`, where `x @ weight.T + bias` is gate and up side by side.

    Args:
        x: float32 [rows, k].
        panels: of the weight [2 · n, k], in any format.
        bias: float32 [2 · n], or empty.
        out: float32 [rows, n]; n is a multiple of `PANEL`.
        means: for the format.
    """
    rows, k = x.shape
    half = len(panels) // 2
    block = _rows_of_a_block(rows, k)
    pieces = _pieces(half, 2 * k, block < rows, means.threads)
    for piece in prange(pieces):
        first, last = half * piece // pieces, half * (piece + 1) // pieces
        gates, ups = panels[first:last], panels[half + first : half + last]
        if block < rows:
            gate_numbers, up_numbers = _as_float32(gates, k, means.tile), _as_float32(ups, k, means.tile)
            for row in range(0, rows, block):
                _multiply_gated(
                    x[row : row + block], gate_numbers, up_numbers, first, bias, out[row:], means.plain_tile
                )
        else:
            _multiply_gated(x, gates, ups, first, bias, out, means.tile)


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _rows_of_a_block(rows: Any, k: Any) -> Any:
    return max(1, rows) if rows * k <= _FEW else max(24, _BLOCK // k // 24 * 24)


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _pieces(num_panels: Any, k: Any, is_read_often: Any, threads: Any) -> Any:
    """Parts in which to take so many panels: one for each thread, or as many as keep the size of a part small."""
    parts = num_panels * k * PANEL // _PART // threads * threads if is_read_often else 0
    return min(num_panels, max(threads, parts))


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _multiply(x: Any, panels: Any, first: Any, out: Any, adds: Any, tile: Any) -> None:
    """One thread's share of a product: panels one after the other, `first` being the number of the first."""
    rows, k = x.shape
    room, half = _room(panels, 2, k), 4 * k * PANEL
    prepare_panel(tile, panels.ctypes.data, k, _start(room))
    for panel in range(len(panels)):
        here, there = _start(room) + panel % 2 * half, _start(room) + (panel + 1) % 2 * half
        numbers = here if len(room) else panels[panel].ctypes.data
        following = panels[panel + 1].ctypes.data if panel + 1 < len(panels) else 0
        place = out[:, (first + panel) * PANEL :].ctypes.data
        multiply_tile(tile, x.ctypes.data, k, rows, numbers, k, following, there, place, out.shape[1], adds)


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _multiply_gated(x: Any, gates: Any, ups: Any, first: Any, bias: Any, out: Any, tile: Any) -> None:
    """One thread's share of a gated product: a panel of the gate, then the one of the other half, and so on."""
    rows, k = x.shape
    room = _room(gates, 2, k)
    here, there = _start(room), _start(room) + 4 * k * PANEL
    gate, up = np.empty((rows, PANEL), np.float32), np.empty((rows, PANEL), np.float32)
    prepare_panel(tile, gates.ctypes.data, k, here)
    for panel in range(len(gates)):
        stored, other = gates[panel].ctypes.data, ups[panel].ctypes.data
        following = gates[panel + 1].ctypes.data if panel + 1 < len(gates) else 0
        numbers = here if len(room) else stored
        multiply_tile(tile, x.ctypes.data, k, rows, numbers, k, other, there, gate.ctypes.data, PANEL, 0)
        numbers = there if len(room) else other
        multiply_tile(tile, x.ctypes.data, k, rows, numbers, k, following, here, up.ctypes.data, PANEL, 0)
        column = (first + panel) * PANEL
        if len(bias):
            _add_row(gate, bias[column:])
            _add_row(up, bias[out.shape[1] + column :])
        for row in range(rows):
            place = out[row, column:].ctypes.data
            apply_gate(gate[row].ctypes.data, up[row].ctypes.data, place)


def _as_float32(panels: Any, k: Any, tile: Any) -> Any:
    """Panels [n, k, PANEL] in float32, for compiled code."""
    raise NotImplementedError


@overload(_as_float32)  # type: ignore[untyped-decorator]
def _overload_as_float32(panels: Any, k: Any, tile: Any) -> Any:
    return _as_they_are if panels.dtype == types.float32 else _copy_as_float32


def _as_they_are(panels: Any, k: Any, tile: Any) -> Any:
    return panels


def _copy_as_float32(panels: Any, k: Any, tile: Any) -> Any:
    size = k * PANEL
    room = _room(panels, len(panels), k)
    skipped = (_start(room) - room.ctypes.data) // 4
    numbers = room[skipped : skipped + len(panels) * size].reshape(len(panels), k, PANEL)
    for panel in range(len(panels)):
        prepare_panel(tile, panels[panel].ctypes.data, k, numbers[panel].ctypes.data)
    return numbers


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _add_row(values: Any, row: Any) -> None:
    for i in range(len(values)):
        for j in range(PANEL):
            values[i, j] += row[j]
