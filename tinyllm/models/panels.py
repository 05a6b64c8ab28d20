"""Matrix products on the CPU by compiled code of our own, with the weights in panels, for one row or a thousand.

A panel holds sixteen rows of a weight matrix, channel by channel, so that a tile of the product reads it from front to
back. A weight is read from memory once for some hundred rows of x: what counts for few rows is how many bytes that are,
for many how full the arithmetic units are; docs/performance.md has the measurements. Weights kept in fewer bytes than
float32 (`tinyllm.models.formats`) become float32 a panel at a time, while the panel before it is multiplied.
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

_BLOCK: Final = 1 << 18
"""Numbers of x that are multiplied with all panels before the next ones: 1 MiB, which stays nearer than memory."""

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
        numbers = _as_float32(panels[panel], k, means.tile)
        for channel in range(k):
            out[i, channel] = numbers[channel, lane]


@njit(parallel=True, fastmath=FASTMATH, nogil=True, cache=True)  # type: ignore[untyped-decorator]
def panel_matmul(x: Any, panels: Any, out: Any, adds: Any, means: Any) -> None:
    """`out = x @ weight.T`, or `out +=` it if `adds` is not 0.

    Args:
        x: float32 [rows, k].
        panels: of the weight [n, k], in any format.
        out: float32 [rows, n rounded up to whole panels].
        means: for the format.
    """
    shares = shares_of(_blocks(*x.shape) * len(panels), means.threads)
    for thread in prange(means.threads):
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
    shares = shares_of(_blocks(*x.shape) * (len(panels) // 2), means.threads)
    for thread in prange(means.threads):
        _multiply_gated(x, panels, shares, thread, bias, out, means.tile)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _rows_of_a_block(rows: Any, k: Any) -> Any:
    """So many rows of x, in blocks as even as can be, are multiplied with all panels in turn."""
    blocks = max(1, (rows * k + _BLOCK - 1) // _BLOCK)
    return max(1, (rows + blocks - 1) // blocks)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _blocks(rows: Any, k: Any) -> Any:
    block = _rows_of_a_block(rows, k)
    return (rows + block - 1) // block


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _multiply(x: Any, panels: Any, shares: Any, thread: Any, out: Any, adds: Any, tile: Any) -> None:
    """One thread's share of a product: a block of x with a panel, as it takes them; blocks one after the other."""
    rows, k = x.shape
    block = _rows_of_a_block(rows, k)
    room = _rooms(block, panels, k)
    here = _start(room)
    there = here + 4 * k * PANEL if len(room) else 0
    stride = out.strides[0] // out.itemsize
    task = take_task(shares, thread)
    if task >= 0:
        prepare_panel(tile, panels[task % len(panels)].ctypes.data, k, here)
    while task >= 0:
        first, panel = task // len(panels) * block, task % len(panels)
        task = take_task(shares, thread)
        numbers = here if len(room) else panels[panel].ctypes.data
        then = panels[task % len(panels)].ctypes.data if task >= 0 else 0
        place = out[first:, panel * PANEL :].ctypes.data
        size = min(block, rows - first)
        multiply_tile(tile, x[first:].ctypes.data, k, size, numbers, k, then, there, place, stride, adds)
        here, there = there, here


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _multiply_gated(x: Any, panels: Any, shares: Any, thread: Any, bias: Any, out: Any, tile: Any) -> None:
    """One thread's share of a gated product: a block of x with a panel of the gate, then of the other half."""
    rows, k = x.shape
    half = len(panels) // 2
    block = _rows_of_a_block(rows, k)
    room = _rooms(block, panels, k)
    here = _start(room)
    there = here + 4 * k * PANEL if len(room) else 0
    gate, stride = np.empty((block, PANEL), np.float32), out.strides[0] // out.itemsize
    task = take_task(shares, thread)
    if task >= 0:
        prepare_panel(tile, panels[task % half].ctypes.data, k, here)
    while task >= 0:
        first, panel = task // half * block, task % half
        task = take_task(shares, thread)
        stored, other = panels[panel].ctypes.data, panels[half + panel].ctypes.data
        then = panels[task % half].ctypes.data if task >= 0 else 0
        size, some = min(block, rows - first), x[first:].ctypes.data
        numbers = here if len(room) else stored
        multiply_tile(tile, some, k, size, numbers, k, other, there, gate.ctypes.data, PANEL, 0)
        numbers = there if len(room) else other
        up = out[first : first + size, panel * PANEL :]
        multiply_tile(tile, some, k, size, numbers, k, then, here, up.ctypes.data, stride, 0)
        if len(bias):
            _add_row(gate[:size], bias[panel * PANEL :])
            _add_row(up, bias[(half + panel) * PANEL :])
        for row in range(size):
            place = up[row].ctypes.data
            apply_gate(gate[row].ctypes.data, place, place)


def _as_float32(panel: Any, k: Any, tile: Any) -> Any:
    """A panel as float32 [k, PANEL], for compiled code."""
    raise NotImplementedError


@overload(_as_float32)  # type: ignore[untyped-decorator]
def _overload_as_float32(panel: Any, k: Any, tile: Any) -> Any:
    return _as_it_is if panel.dtype == types.float32 else _copy_as_float32


def _as_it_is(panel: Any, k: Any, tile: Any) -> Any:
    return panel


def _copy_as_float32(panel: Any, k: Any, tile: Any) -> Any:
    numbers = np.empty((k, PANEL), np.float32)
    prepare_panel(tile, panel.ctypes.data, k, numbers.ctypes.data)
    return numbers


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _add_row(values: Any, row: Any) -> None:
    for i in range(len(values)):
        for j in range(PANEL):
            values[i, j] += row[j]
