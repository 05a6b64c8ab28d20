"""The CPU decode kernel: single tokens against their paged keys and values, read where they lie."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from tinyllm.models.exponential import exponentiate
from tinyllm.models.formats.base import PANEL
from tinyllm.models.panels import FASTMATH
from tinyllm.models.tile import multiply_tile

_PIECES: Final = 64
"""Parts of the work that threads share out: contexts differ in length."""

_FLOAT: Final = 4
"""Bytes of a number: tiles take addresses."""


class Singles(NamedTuple):
    """Tokens that attend one by one.

    Attributes:
        tokens: int64 [n], the index of each in the flattened batch.
        contexts: int64 [n], how many tokens of its request it sees, itself included.
        tables: int32 [n, max_blocks], its blocks.
    """

    tokens: NDArray[np.int64]
    contexts: NDArray[np.int64]
    tables: NDArray[np.int32]


@njit(parallel=True, fastmath=FASTMATH, nogil=True, cache=True)  # type: ignore[untyped-decorator]
def paged_decode(
    q: Any, keys: Any, values: Any, singles: Any, window: Any, out: Any, tile: Any
) -> None:
    """Fill `out` at these tokens, whose own keys and values are already in the cache.

    Args:
        q, out: float32 [num_tokens, num_heads, head_dim].
        keys, values: of a layer (`panel_cache`).
        window: how many latest tokens a query sees, at least 1.
        tile: the address of the tile's code for float32.
    """
    num_kv_heads, head_dim = keys.shape[1], keys.shape[3]
    group = q.shape[1] // num_kv_heads
    tasks = len(singles.tokens) * num_kv_heads
    pieces = min(tasks, _PIECES)
    for piece in prange(pieces):
        for task in range(tasks * piece // pieces, tasks * (piece + 1) // pieces):
            row, head = task // num_kv_heads, task % num_kv_heads
            place = _FLOAT * (singles.tokens[row] * q.shape[1] + head * group) * head_dim
            _attend(
                q.ctypes.data + place, group, keys, values, head, singles.tables[row],
                singles.contexts[row], window, out.ctypes.data + place, tile,
            )  # fmt: skip


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _attend(
    q: Any, group: Any, keys: Any, values: Any, head: Any, table: Any, context: Any, window: Any, out: Any,
    tile: Any,
) -> None:
    """The query heads at address q [group, head_dim] of one token that share a KV head; their output to `out`."""
    num_kv_heads, panels_of_block, head_dim = keys.shape[1], keys.shape[2], keys.shape[3]
    block_size = panels_of_block * PANEL
    first_block, last_block = max(0, context - window) // block_size, (context - 1) // block_size + 1
    stride = (last_block - first_block) * block_size
    buffer = np.empty((group, stride), np.float32)
    scores = buffer.ctypes.data
    bytes_of_head = _FLOAT * block_size * head_dim
    k, v = keys.ctypes.data + head * bytes_of_head, values.ctypes.data + head * bytes_of_head
    bytes_of_block = num_kv_heads * bytes_of_head
    panel_bytes = _FLOAT * PANEL * head_dim
    for block in range(first_block, last_block):
        key = k + table[block] * bytes_of_block
        following = k + table[min(block + 1, last_block - 1)] * bytes_of_block
        place = scores + _FLOAT * (block - first_block) * block_size
        for panel in range(panels_of_block):
            ahead = panel * panel_bytes
            multiply_tile(
                tile, q, head_dim, group, key + ahead, head_dim, following + ahead, 0, 0, 0,
                place + _FLOAT * panel * PANEL, stride, 0,
            )  # fmt: skip
    scale = np.float32(1.0 / np.sqrt(head_dim))
    for row in range(group):
        for i in range(context - window - first_block * block_size):
            buffer[row, i] = -np.inf
        for i in range(context - first_block * block_size, stride):
            buffer[row, i] = -np.inf
        share = np.float32(1.0) / exponentiate(scores + _FLOAT * row * stride, stride, scale)
        for i in range(stride):
            buffer[row, i] *= share
    panel_bytes = _FLOAT * PANEL * block_size
    for block in range(first_block, last_block):
        value = v + table[block] * bytes_of_block
        following = v + table[min(block + 1, last_block - 1)] * bytes_of_block
        place = scores + _FLOAT * (block - first_block) * block_size
        tokens = min(block_size, context - block * block_size)
        for panel in range(head_dim // PANEL):
            ahead = panel * panel_bytes
            multiply_tile(
                tile, place, stride, group, value + ahead, tokens, following + ahead, 0, 0, 0,
                out + _FLOAT * panel * PANEL, head_dim, block - first_block,
            )  # fmt: skip
