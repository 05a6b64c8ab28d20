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
from tinyllm.models.shares import shares_of, take_task
from tinyllm.models.tile import multiply_tile, prepare_panel, tile_address

# Sums may be reordered, or no loop over channels becomes a vector instruction. NaN and infinity stay what they are.
FASTMATH: Final = {"reassoc", "contract", "arcp", "nsz"}

_BLOCK: Final = 1 << 15
"""Numbers of x that are multiplied with a panel before the next one: 128 KiB, which stay in a core's own cache."""

_FEW: Final = 1 << 17
"""Numbers of x up to which all are one block, since each further one reads the panels again."""

_PART: Final = 1 << 16
"""Numbers of a weight that several blocks are multiplied with in turn: 256 KiB, which stay in that cache as well."""

FEW_ROWS: Final = 8
"""Rows of x up to which numbers of compact weights go from memory to the sums, without a stop in a room."""

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
def _room(num_panels: Any, k: Any) -> Any:
    """Room for the numbers of panels of k channels and for a line before them; empty for no panels."""
    return np.empty(num_panels * k * PANEL + _LINE // 4 if num_panels else 0, np.float32)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _start(room: Any) -> Any:
    """The address in a room from which on panels lie; 0 if it is empty."""
    return (room.ctypes.data + _LINE - 1) // _LINE * _LINE if len(room) else 0


@njit(cache=True)  # type: ignore[untyped-decorator]
def _rooms(rows: Any, panels: Any, k: Any) -> Any:
    """Room for two panels as float32; empty where so few rows are multiplied with them as they are kept.

    Whoever takes addresses in it must use the array itself after them, or it is given back before.
    """
    return _room(2 if rows > FEW_ROWS and panels.itemsize < 4 else 0, k)


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
    parts = _parts(len(panels), k, means.threads) if block < rows else len(panels)
    shares = shares_of(parts, means.threads)
    for thread in prange(means.threads):
        if block < rows:
            part = take_task(shares, thread)
            while part >= 0:
                first, last = len(panels) * part // parts, len(panels) * (part + 1) // parts
                numbers = _as_float32(panels[first:last], k, means.tile)
                for row in range(0, rows, block):
                    into = out[row:, first * PANEL :]
                    all_of_it = shares_of(len(numbers), 1)
                    _multiply(x[row : row + block], numbers, all_of_it, 0, into, adds, means.plain_tile)
                part = take_task(shares, thread)
        else:
            _multiply(x, panels, shares, thread, out, adds, means.tile)


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
    parts = _parts(half, 2 * k, means.threads) if block < rows else half
    shares = shares_of(parts, means.threads)
    for thread in prange(means.threads):
        if block < rows:
            part = take_task(shares, thread)
            while part >= 0:
                first, last = half * part // parts, half * (part + 1) // parts
                gates = _as_float32(panels[first:last], k, means.tile)
                ups = _as_float32(panels[half + first : half + last], k, means.tile)
                for row in range(0, rows, block):
                    some, all_of_it = x[row : row + block], shares_of(len(gates), 1)
                    _multiply_gated(some, gates, ups, all_of_it, 0, first, bias, out[row:], means.plain_tile)
                part = take_task(shares, thread)
        else:
            gates, ups = panels[:half], panels[half:]
            _multiply_gated(x, gates, ups, shares, thread, 0, bias, out, means.tile)


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _rows_of_a_block(rows: Any, k: Any) -> Any:
    return max(1, rows) if rows * k <= _FEW else max(24, _BLOCK // k // 24 * 24)


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _parts(num_panels: Any, k: Any, threads: Any) -> Any:
    """Parts of so many panels, each small enough to stay in a core's own cache."""
    return min(num_panels, max(threads, num_panels * k * PANEL // _PART // threads * threads))


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _multiply(x: Any, panels: Any, shares: Any, thread: Any, out: Any, adds: Any, tile: Any) -> None:
    """One thread's share of a product: panels one after the other, as it takes them."""
    rows, k = x.shape
    room = _rooms(rows, panels, k)
    here = _start(room)
    there = here + 4 * k * PANEL if len(room) else 0
    panel = take_task(shares, thread)
    if panel >= 0:
        prepare_panel(tile, panels[panel].ctypes.data, k, here)
    while panel >= 0:
        following = take_task(shares, thread)
        numbers = here if len(room) else panels[panel].ctypes.data
        then = panels[following].ctypes.data if following >= 0 else 0
        place = out[:, panel * PANEL :].ctypes.data
        stride = out.strides[0] // out.itemsize
        multiply_tile(tile, x.ctypes.data, k, rows, numbers, k, then, there, place, stride, adds)
        panel, here, there = following, there, here


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _multiply_gated(
    x: Any, gates: Any, ups: Any, shares: Any, thread: Any, first: Any, bias: Any, out: Any, tile: Any
) -> None:  # fmt: skip
    """One thread's share of a gated product: a panel of the gate, then the one of the other half, as it takes them.

    Args:
        first: where `gates` begin in the whole weight.
    """
    rows, k = x.shape
    room = _rooms(rows, gates, k)
    here = _start(room)
    there = here + 4 * k * PANEL if len(room) else 0
    gate, up = np.empty((rows, PANEL), np.float32), np.empty((rows, PANEL), np.float32)
    panel = take_task(shares, thread)
    if panel >= 0:
        prepare_panel(tile, gates[panel].ctypes.data, k, here)
    while panel >= 0:
        following = take_task(shares, thread)
        stored, other = gates[panel].ctypes.data, ups[panel].ctypes.data
        then = gates[following].ctypes.data if following >= 0 else 0
        numbers = here if len(room) else stored
        multiply_tile(tile, x.ctypes.data, k, rows, numbers, k, other, there, gate.ctypes.data, PANEL, 0)
        numbers = there if len(room) else other
        multiply_tile(tile, x.ctypes.data, k, rows, numbers, k, then, here, up.ctypes.data, PANEL, 0)
        column = (first + panel) * PANEL
        if len(bias):
            _add_row(gate, bias[column:])
            _add_row(up, bias[out.shape[1] + column :])
        for row in range(rows):
            place = out[row, column:].ctypes.data
            apply_gate(gate[row].ctypes.data, up[row].ctypes.data, place)
        panel = following


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
    room = _room(len(panels), k)
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
