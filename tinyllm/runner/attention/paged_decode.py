"""The CPU decode kernel: single tokens against their paged keys and values, read where they lie."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from tinyllm.models.exponential import LOG2_E, exponentiate, largest
from tinyllm.models.formats.base import PANEL
from tinyllm.models.panels import FASTMATH
from tinyllm.models.tile import multiply_tile

_AHEAD: Final = 1
"""How many blocks ahead memory is asked for."""

_FLOAT: Final = 4
"""Bytes of a number: tiles take addresses."""


class Singles(NamedTuple):
    """Tokens that attend one by one.

    Attributes:
        tokens: int64 [n], the index of each in the flattened batch.
        contexts: int64 [n], how many tokens of its request it sees, itself included.
        tables: int32 [n, max_blocks], its blocks.
        bounds: int64 [parts + 1], where the part of each thread begins among n · num_kv_heads tasks, a head of a
            token each; all parts have about as many keys to look at.
    """

    tokens: NDArray[np.int64]
    contexts: NDArray[np.int64]
    tables: NDArray[np.int32]
    bounds: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        tokens: NDArray[np.int64],
        contexts: NDArray[np.int64],
        tables: NDArray[np.int32],
        *,
        num_kv_heads: int,
        num_threads: int,
    ) -> Singles:
        """These tokens, shared out among so many threads."""
        keys = np.cumsum(np.repeat(contexts, num_kv_heads))
        shares = keys[-1:] * np.arange(1, num_threads) // num_threads
        inner = np.searchsorted(keys, shares, side="right")
        bounds = np.concatenate(([0], inner, [len(keys)])).astype(np.int64)
        return cls(tokens, contexts, np.ascontiguousarray(tables), bounds)


@njit(parallel=True, fastmath=FASTMATH, nogil=True, cache=True)  # type: ignore[untyped-decorator]
def paged_decode(q: Any, keys: Any, values: Any, singles: Any, window: Any, out: Any, tile: Any) -> None:
    """Fill `out` at these tokens, whose own keys and values are already in the cache.

    Args:
        q, out: float32 [num_tokens, num_heads, head_dim].
        keys, values: of a layer (`panel_cache`).
        window: how many latest tokens a query sees, at least 1.
        tile: the address of the tile's code for float32.
    """
    num_kv_heads, head_dim = keys.shape[1], keys.shape[3]
    group = q.shape[1] // num_kv_heads
    for part in prange(len(singles.bounds) - 1):
        task, end = singles.bounds[part], singles.bounds[part + 1]
        while task < end:
            row, head = task // num_kv_heads, task % num_kv_heads
            num_heads = min(num_kv_heads - head, end - task)
            place = _FLOAT * (singles.tokens[row] * q.shape[1] + head * group) * head_dim
            _attend(
                q.ctypes.data + place, group, keys, values, head, num_heads, singles.tables[row],
                singles.contexts[row], window, out.ctypes.data + place, tile,
            )  # fmt: skip
            task += num_heads


@njit(fastmath=FASTMATH, error_model="numpy", cache=True)  # type: ignore[untyped-decorator]
def _attend(
    q: Any, group: Any, keys: Any, values: Any, head: Any, num_heads: Any, table: Any, context: Any,
    window: Any, out: Any, tile: Any,
) -> None:  # fmt: skip
    """Some KV heads of one token, from `head` on: q [num_heads · group, head_dim] to `out`, both addresses."""
    num_kv_heads, panels_of_block, head_dim = keys.shape[1], keys.shape[2], keys.shape[3]
    block_size = panels_of_block * PANEL
    first_block, last_block = max(0, context - window) // block_size, (context - 1) // block_size + 1
    blocks = last_block - first_block
    stride = blocks * block_size
    buffer = np.empty((num_heads * group, stride), np.float32)
    scores = buffer.ctypes.data
    bytes_of_head = _FLOAT * block_size * head_dim
    bytes_of_block = num_kv_heads * bytes_of_head
    k, v = keys.ctypes.data + head * bytes_of_head, values.ctypes.data + head * bytes_of_head
    panel_bytes = _FLOAT * PANEL * head_dim
    for block in range(blocks):
        key = k + table[first_block + block] * bytes_of_block
        following = k + table[min(first_block + block + _AHEAD, last_block - 1)] * bytes_of_block
        # The heads of a block lie one after the other, and are read so.
        for panel in range(num_heads * panels_of_block):
            this, ahead = panel // panels_of_block, panel * panel_bytes
            place = this * group * stride + (block * panels_of_block + panel % panels_of_block) * PANEL
            multiply_tile(
                tile, q + _FLOAT * this * group * head_dim, head_dim, group, key + ahead, head_dim,
                following + ahead, 0, scores + _FLOAT * place, stride, 0,
            )  # fmt: skip
    scale = np.float32(LOG2_E / np.sqrt(head_dim))
    for row in range(num_heads * group):
        for i in range(context - window - first_block * block_size):
            buffer[row, i] = -np.inf
        for i in range(context - first_block * block_size, stride):
            buffer[row, i] = -np.inf
        place = scores + _FLOAT * row * stride
        share = np.float32(1.0) / exponentiate(place, stride, scale, largest(place, stride))
        for i in range(stride):
            buffer[row, i] *= share
    panel_bytes = _FLOAT * PANEL * block_size
    panels_of_head = head_dim // PANEL
    for block in range(blocks):
        value = v + table[first_block + block] * bytes_of_block
        following = v + table[min(first_block + block + _AHEAD, last_block - 1)] * bytes_of_block
        tokens = min(block_size, context - (first_block + block) * block_size)
        for panel in range(num_heads * panels_of_head):
            this, ahead = panel // panels_of_head, panel * panel_bytes
            place = this * group * head_dim + panel % panels_of_head * PANEL
            multiply_tile(
                tile, scores + _FLOAT * (this * group * stride + block * block_size), stride, group, value + ahead,
                tokens, following + ahead, 0, out + _FLOAT * place, head_dim, block,
            )  # fmt: skip
