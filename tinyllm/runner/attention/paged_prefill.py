"""The CPU prefill kernel: the chunks of prompts against their paged keys and values, in tiles of matrix products."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from tinyllm.models.panels import FASTMATH
from tinyllm.models.tile import PANEL, multiply_tile
from tinyllm.runner.attention.softmax import exponentiate

_PIECES: Final = 16
"""Parts of the work that threads share out."""

_QUERIES: Final = 24
"""Queries, counted for each head, that are scored together: their scores of all keys should fit a core's own cache."""


class Chunks(NamedTuple):
    """The rows of a step that are chunks of prompts, and room for their work, which every layer uses again.

    Attributes:
        starts: int64 [rows], the flat index of each row's first token.
        lengths: int64 [rows], its new tokens.
        contexts: int64 [rows], its tokens after the step, the new ones included.
        tables: int32 [rows, max_blocks], its blocks.
        keys: float32 [num_kv_heads, panels of the longest context, head_dim, PANEL].
        values: float32 [num_kv_heads, panels of head_dim, panels of the longest context · PANEL, PANEL].
        scores: float32 [pieces, _QUERIES, panels of the longest context · PANEL].
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    contexts: NDArray[np.int64]
    tables: NDArray[np.int32]
    keys: NDArray[np.float32]
    values: NDArray[np.float32]
    scores: NDArray[np.float32]

    @classmethod
    def of(
        cls,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        contexts: NDArray[np.int64],
        tables: NDArray[np.int32],
        *,
        num_kv_heads: int,
        head_dim: int,
        group: int,
    ) -> Chunks:
        """These rows, with room for heads of these sizes, `group` query heads for each KV head."""
        panels = -(-int(contexts.max(initial=0)) // PANEL)
        queries = max(group, _QUERIES)
        return cls(
            starts, lengths, contexts, tables,
            np.empty((num_kv_heads, panels, head_dim, PANEL), np.float32),
            np.empty((num_kv_heads, -(-head_dim // PANEL), panels * PANEL, PANEL), np.float32),
            np.empty((_PIECES, queries, panels * PANEL), np.float32),
        )  # fmt: skip


@njit(cache=True)  # type: ignore[untyped-decorator]
def paged_prefill(q: Any, k_cache: Any, v_cache: Any, chunks: Any, window: Any, out: Any) -> None:
    """Fill `out` at the tokens of the chunks, whose own keys and values are already in the cache.

    Args:
        q, out: [tokens, num_heads, head_dim].
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        window: how many latest tokens a query sees, at least 1.
    """
    for row in range(len(chunks.starts)):
        _gather(k_cache, v_cache, chunks.tables[row], chunks.contexts[row], chunks.keys, chunks.values)
        _attend(
            q, chunks.starts[row], chunks.lengths[row], chunks.contexts[row], window,
            chunks.keys, chunks.values, chunks.scores, out,
        )  # fmt: skip


@njit(parallel=True, fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _gather(k_cache: Any, v_cache: Any, table: Any, context: Any, keys: Any, values: Any) -> None:
    """Lay the context out in panels; what lies beyond it is zero, for a weight of 0 does not remove a NaN."""
    block_size, num_kv_heads, head_dim = k_cache.shape[1], k_cache.shape[2], k_cache.shape[3]
    for panel in prange((context + PANEL - 1) // PANEL):
        for i in range(PANEL):
            token = panel * PANEL + i
            is_there = token < context
            block, offset = table[token // block_size] if is_there else 0, token % block_size
            for head in range(num_kv_heads):
                for channel in range(head_dim):
                    key = k_cache[block, offset, head, channel] if is_there else np.float32(0.0)
                    value = v_cache[block, offset, head, channel] if is_there else np.float32(0.0)
                    keys[head, panel, channel, i] = key
                    values[head, channel // PANEL, token, channel % PANEL] = value
                for channel in range(head_dim, values.shape[1] * PANEL):
                    values[head, channel // PANEL, token, channel % PANEL] = np.float32(0.0)


@njit(parallel=True, fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _attend(
    q: Any, start: Any, length: Any, context: Any, window: Any, keys: Any, values: Any, scores: Any, out: Any
) -> None:
    num_kv_heads, head_dim = len(keys), keys.shape[2]
    group = q.shape[1] // num_kv_heads
    tokens = max(1, _QUERIES // group)
    tasks = (length + tokens - 1) // tokens * num_kv_heads
    for piece in prange(_PIECES):
        queries = np.empty((tokens * group, head_dim), np.float32)
        mixed = np.empty((tokens * group, values.shape[1] * PANEL), np.float32)
        # Later queries see more: dealt out in turn, they keep all threads busy equally long.
        for task in range(piece, tasks, _PIECES):
            head, first = task % num_kv_heads, task // num_kv_heads * tokens
            size = min(tokens, length - first)
            begin, position = start + first, context - length + first
            _take_queries(q, begin, size, head * group, group, queries)
            _attend_block(
                queries, size, group, position, window, keys[head], values[head], scores[piece], mixed
            )
            for i in range(size):
                for g in range(group):
                    out[begin + i, head * group + g] = mixed[i * group + g, :head_dim]


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _take_queries(q: Any, begin: Any, size: Any, first_head: Any, group: Any, queries: Any) -> None:
    """The queries of a group of heads of some tokens, one after the other and scaled."""
    head_dim = queries.shape[1]
    scale = np.float32(1.0 / np.sqrt(head_dim))
    for i in range(size):
        for g in range(group):
            for channel in range(head_dim):
                queries[i * group + g, channel] = q[begin + i, first_head + g, channel] * scale


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _attend_block(
    queries: Any,
    size: Any,
    group: Any,
    position: Any,
    window: Any,
    keys: Any,
    values: Any,
    scores: Any,
    mixed: Any,
) -> None:
    """Fill mixed [size · group, head_dim]: token i of the block sits at `position + i` of its request."""
    rows, head_dim, stride = size * group, keys.shape[1], scores.shape[1]
    first = max(0, position - window + 1) // PANEL
    last = (position + size - 1) // PANEL + 1
    width = (last - first) * PANEL
    for panel in range(first, last):
        place = scores[:, (panel - first) * PANEL :].ctypes.data
        multiply_tile(
            queries.ctypes.data, head_dim, rows, keys[panel].ctypes.data, head_dim, place, stride, 0
        )
    for row in range(rows):
        newest = position + row // group
        scores[row, : max(0, newest - window + 1 - first * PANEL)] = -np.inf
        scores[row, newest + 1 - first * PANEL : width] = -np.inf
        share = np.float32(1.0) / exponentiate(scores[row, :width])
        for i in range(width):
            scores[row, i] *= share
    for panel in range(len(values)):
        place = values[panel, first * PANEL :].ctypes.data
        into = mixed[:, panel * PANEL :].ctypes.data
        multiply_tile(scores.ctypes.data, stride, rows, place, width, into, mixed.shape[1], 0)
