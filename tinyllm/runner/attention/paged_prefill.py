"""The CPU prefill kernel: the chunks of prompts against their paged keys and values, in tiles of matrix products."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from tinyllm.models.exponential import LOG2_E, exponentiate, largest
from tinyllm.models.formats.base import PANEL
from tinyllm.models.panels import FASTMATH
from tinyllm.models.shares import shares_of, take_task
from tinyllm.models.tile import multiply_tile

_QUERIES: Final = 72
"""Queries, counted for each head, that look at keys together."""

_KEYS: Final = 256
"""Keys that they look at before the next ones: the scores stay in a core's own cache."""


class Chunks(NamedTuple):
    """The rows of a step that are chunks of prompts, and room for their work, which every layer uses again.

    Attributes:
        starts: int64 [rows], the flat index of each row's first token.
        lengths: int64 [rows], its new tokens.
        contexts: int64 [rows], its tokens after the step, the new ones included.
        tables: int32 [rows, max_blocks], its blocks.
        values: float32 [num_kv_heads, head_dim / PANEL, longest context in whole panels, PANEL].
        scores: float32 [threads, queries, keys], of what is looked at together.
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    contexts: NDArray[np.int64]
    tables: NDArray[np.int32]
    values: NDArray[np.float32]
    scores: NDArray[np.float32]

    @classmethod
    def of(
        cls,
        starts: NDArray[np.integer],
        lengths: NDArray[np.integer],
        contexts: NDArray[np.integer],
        tables: NDArray[np.int32],
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        num_threads: int,
    ) -> Chunks:
        """These rows, with room for heads of these sizes and so many threads."""
        width = -(-int(contexts.max(initial=0)) // PANEL) * PANEL
        queries = max(num_heads // num_kv_heads, _QUERIES)
        return cls(
            starts.astype(np.int64),
            lengths.astype(np.int64),
            contexts.astype(np.int64),
            tables,
            np.empty((num_kv_heads, head_dim // PANEL, width, PANEL), np.float32),
            np.empty((num_threads, queries, _KEYS), np.float32),
        )


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def paged_prefill(q: Any, keys: Any, values: Any, chunks: Any, window: Any, out: Any, tile: Any) -> None:
    """Fill `out` at the tokens of the chunks, whose own keys and values are already in the cache.

    Args:
        q, out: float32 [num_tokens, num_heads, head_dim].
        keys, values: of a layer (`panel_cache`).
        window: how many latest tokens a query sees, at least 1.
        tile: the address of the tile's code for float32.
    """
    for row in range(len(chunks.starts)):
        table, context = chunks.tables[row], chunks.contexts[row]
        _gather(values, table, context, chunks.values)
        _attend(
            q, keys, chunks.values, table, chunks.starts[row], chunks.lengths[row], context, window,
            chunks.scores, out, tile,
        )  # fmt: skip


@njit(parallel=True, fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _gather(cache: Any, table: Any, context: Any, values: Any) -> None:
    """Values of a context one after the other; what lies beyond it is zero, for a weight of 0 removes no NaN."""
    block_size, width = cache.shape[3], (context + PANEL - 1) // PANEL * PANEL
    for block in prange((context + block_size - 1) // block_size):
        first = block * block_size
        tokens = min(block_size, context - first)
        for head in range(len(values)):
            for panel in range(values.shape[1]):
                for token in range(tokens):
                    for lane in range(PANEL):
                        values[head, panel, first + token, lane] = cache[
                            table[block], head, panel, token, lane
                        ]
                for token in range(first + tokens, min(first + block_size, width)):
                    for lane in range(PANEL):
                        values[head, panel, token, lane] = np.float32(0.0)


@njit(parallel=True, fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _attend(
    q: Any, keys: Any, values: Any, table: Any, start: Any, length: Any, context: Any, window: Any,
    scores: Any, out: Any, tile: Any,
) -> None:  # fmt: skip
    num_kv_heads, head_dim = keys.shape[1], keys.shape[3]
    group = q.shape[1] // num_kv_heads
    tokens = max(1, _QUERIES // group)
    blocks = (length + tokens - 1) // tokens
    shares = shares_of(blocks * num_kv_heads, len(scores))
    for thread in prange(len(scores)):
        queries = np.empty((tokens * group, head_dim), np.float32)
        mixed = np.empty((tokens * group, head_dim), np.float32)
        task = take_task(shares, thread)
        while task >= 0:
            head, first = task // blocks, task % blocks * tokens
            begin, size = start + first, min(tokens, length - first)
            for i in range(size):
                for g in range(group):
                    for channel in range(head_dim):
                        queries[i * group + g, channel] = q[begin + i, head * group + g, channel]
            _attend_block(
                queries[: size * group], group, context - length + first, window, keys, values, head, table,
                scores[thread], mixed, tile,
            )  # fmt: skip
            for i in range(size):
                for g in range(group):
                    for channel in range(head_dim):
                        out[begin + i, head * group + g, channel] = mixed[i * group + g, channel]
            task = take_task(shares, thread)


@njit(fastmath=FASTMATH, error_model="numpy", cache=True)  # type: ignore[untyped-decorator]
def _attend_block(
    queries: Any, group: Any, position: Any, window: Any, keys: Any, values: Any, head: Any, table: Any,
    scores: Any, mixed: Any, tile: Any,
) -> None:  # fmt: skip
    """Fill mixed for queries [tokens · group, head_dim] of tokens from `position` of their request on."""
    rows, head_dim, panels_of_block = len(queries), keys.shape[3], keys.shape[2]
    first = max(0, position - window + 1) // PANEL
    last = (position + rows // group - 1) // PANEL + 1
    scale = np.float32(LOG2_E / np.sqrt(head_dim))
    tops, sums = np.full(rows, -np.inf, np.float32), np.zeros(rows, np.float32)
    for begin in range(first, last, _KEYS // PANEL):
        end = min(last, begin + _KEYS // PANEL)
        start, width = begin * PANEL, (end - begin) * PANEL
        for panel in range(begin, end):
            key = keys[table[panel // panels_of_block], head, panel % panels_of_block].ctypes.data
            following = panel + 1 if panel + 1 < last else first
            then = keys[table[following // panels_of_block], head, following % panels_of_block].ctypes.data
            place = scores[:, panel * PANEL - start :].ctypes.data
            multiply_tile(tile, queries.ctypes.data, head_dim, rows, key, head_dim, then, 0, place, _KEYS, 0)
        for row in range(rows):
            newest = position + row // group
            for i in range(newest - window + 1 - start):
                scores[row, i] = -np.inf
            for i in range(newest + 1 - start, width):
                scores[row, i] = -np.inf
            place = scores[row].ctypes.data
            top = max(tops[row], largest(place, width))
            if top > tops[row]:
                # 2^-inf is 0, which is what no keys add up to.
                correction = np.exp2(scale * (tops[row] - top))
                sums[row] *= correction
                if begin > first:
                    for channel in range(head_dim):
                        mixed[row, channel] *= correction
                tops[row] = top
            sums[row] += exponentiate(place, width, scale, top if top > -np.inf else np.float32(0.0))
        for panel in range(values.shape[1]):
            value = values[head, panel, start:].ctypes.data
            following = values[head, panel, start + width :].ctypes.data if end < last else 0
            into = mixed[:, panel * PANEL :].ctypes.data
            multiply_tile(
                tile,
                scores.ctypes.data,
                _KEYS,
                rows,
                value,
                width,
                following,
                0,
                into,
                head_dim,
                begin - first,
            )
    for row in range(rows):
        share = np.float32(1.0) / sums[row]
        for channel in range(head_dim):
            mixed[row, channel] *= share
