"""The CPU decode kernel: single tokens against their paged keys and values, read where they lie."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from tinyllm.models.exponential import exponentiate
from tinyllm.models.panels import FASTMATH
from tinyllm.models.tile import PANEL, multiply_tile

_PIECES: Final = 64
"""Parts of the work that threads share out: contexts differ in length."""


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
def paged_decode(q: Any, keys: Any, values: Any, singles: Any, window: Any, out: Any) -> None:
    """Fill `out` at these tokens, whose own keys and values are already in the cache.

    Args:
        q, out: float32 [num_tokens, num_heads, head_dim].
        keys, values: of a layer (`panel_cache`).
        window: how many latest tokens a query sees, at least 1.
    """
    num_kv_heads = keys.shape[1]
    group = q.shape[1] // num_kv_heads
    tasks = len(singles.tokens) * num_kv_heads
    pieces = min(tasks, _PIECES)
    for piece in prange(pieces):
        for task in range(tasks * piece // pieces, tasks * (piece + 1) // pieces):
            row, head = task // num_kv_heads, task % num_kv_heads
            heads = slice(head * group, (head + 1) * group)
            _attend(
                q[singles.tokens[row], heads], keys, values, head, singles.tables[row],
                singles.contexts[row], window, out[singles.tokens[row], heads],
            )  # fmt: skip


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _attend(
    q: Any, keys: Any, values: Any, head: Any, table: Any, context: Any, window: Any, out: Any
) -> None:
    """The query heads [group, head_dim] of one token that share a KV head."""
    group, head_dim = q.shape
    panels_of_block, block_size = keys.shape[2], values.shape[3]
    first = max(0, context - window)
    first_block, last_block = first // block_size, (context - 1) // block_size + 1
    start, end = first_block * block_size, context
    stride = (last_block - first_block) * block_size
    scores = np.empty((group, stride), np.float32)
    for block in range(first_block, last_block):
        for panel in range(panels_of_block):
            place = scores[:, block * block_size - start + panel * PANEL :].ctypes.data
            key = keys[table[block], head, panel].ctypes.data
            following = keys[table[min(block + 1, last_block - 1)], head, panel].ctypes.data
            multiply_tile(q.ctypes.data, head_dim, group, key, following, head_dim, place, stride, 0)
    shares = np.empty(group, np.float32)
    scale = np.float32(1.0 / np.sqrt(head_dim))
    for row in range(group):
        for i in range(first - start):
            scores[row, i] = -np.inf
        for i in range(end - start, stride):
            scores[row, i] = -np.inf
        shares[row] = np.float32(1.0) / exponentiate(scores[row].ctypes.data, stride, scale)
    for block in range(first_block, last_block):
        tokens = min(block_size, end - block * block_size)
        for panel in range(head_dim // PANEL):
            value = values[table[block], head, panel].ctypes.data
            place = scores[:, block * block_size - start :].ctypes.data
            following = values[table[min(block + 1, last_block - 1)], head, panel].ctypes.data
            into = out[:, panel * PANEL :].ctypes.data
            multiply_tile(place, stride, group, value, following, tokens, into, head_dim, block - first_block)
    for row in range(group):
        for channel in range(head_dim):
            out[row, channel] *= shares[row]
