"""The CPU decode kernel: single tokens against their paged keys and values, read where they lie."""

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

_KEYS: Final = 256
"""Keys of a piece at most, but for rounding up to whole blocks."""

_FLOAT: Final = 4
"""Bytes of a number: tiles take addresses."""


class Singles(NamedTuple):
    """Tokens that attend one by one, and room for their work, which every layer uses again.

    A token's keys are looked at in pieces of equal size, each a task for a thread, and what they give is joined (as in
    Flash-Decoding: Dao, Haziza, Massa and Sizov 2023). How many there are depends on its context alone, so that no
    other token changes a number.

    Attributes:
        tokens: int64 [n], the index of each in the flattened batch.
        contexts: int64 [n], how many tokens of its request it sees, itself included.
        tables: int32 [n, max_blocks], its blocks.
        firsts: int64 [n + 1], the first piece of each, and behind the last.
        owners: int64 [pieces], whose they are, as an index of `tokens`.
        mixed: float32 [pieces, num_heads, head_dim], what a piece alone gives.
        tops: float32 [pieces, num_heads], its largest score.
        sums: float32 [pieces, num_heads], its sum of exponentials; 0 of a piece without keys.
        threads: how many there are.
    """

    tokens: NDArray[np.int64]
    contexts: NDArray[np.int64]
    tables: NDArray[np.int32]
    firsts: NDArray[np.int64]
    owners: NDArray[np.int64]
    mixed: NDArray[np.float32]
    tops: NDArray[np.float32]
    sums: NDArray[np.float32]
    threads: int

    @classmethod
    def of(
        cls,
        tokens: NDArray[np.int64],
        contexts: NDArray[np.int64],
        tables: NDArray[np.int32],
        *,
        num_heads: int,
        head_dim: int,
        num_threads: int,
    ) -> Singles:
        """These tokens, with room for heads of these sizes and so many threads."""
        counts = -(-contexts // _KEYS)
        pieces = int(counts.sum())
        return cls(
            tokens,
            contexts,
            np.ascontiguousarray(tables),
            np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            np.repeat(np.arange(len(tokens)), counts),
            np.empty((pieces, num_heads, head_dim), np.float32),
            np.empty((pieces, num_heads), np.float32),
            np.empty((pieces, num_heads), np.float32),
            num_threads,
        )


@njit(parallel=True, fastmath=FASTMATH, nogil=True, cache=True)  # type: ignore[untyped-decorator]
def paged_decode(q: Any, keys: Any, values: Any, singles: Any, window: Any, out: Any, tile: Any) -> None:
    """Fill `out` at these tokens, whose own keys and values are already in the cache.

    Args:
        q, out: float32 [num_tokens, num_heads, head_dim].
        keys, values: of a layer (`panel_cache`).
        window: how many latest tokens a query sees, at least 1.
        tile: the address of the tile's code for float32.
    """
    block_size = keys.shape[2] * PANEL
    shares = shares_of(len(singles.owners), singles.threads)
    for thread in prange(singles.threads):
        # A piece has so many blocks at most: contexts are rounded up to blocks, and so are pieces.
        scores = np.empty((q.shape[1], (_KEYS // block_size + 2) * block_size), np.float32)
        task = take_task(shares, thread)
        while task >= 0:
            piece, task = task, take_task(shares, thread)
            _attend(q, keys, values, singles, piece, task, window, scores, out, tile)
    _join(singles, keys.shape[3], out)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _blocks_of(singles: Any, piece: Any, window: Any, block_size: Any) -> Any:
    """The first block of a piece within the window, and the one behind its last; no blocks if that is not greater."""
    token = singles.owners[piece]
    context, first = singles.contexts[token], singles.firsts[token]
    blocks, pieces = (context - 1) // block_size + 1, singles.firsts[token + 1] - first
    begin = max((piece - first) * blocks // pieces, max(0, context - window) // block_size)
    return begin, (piece - first + 1) * blocks // pieces


@njit(fastmath=FASTMATH, error_model="numpy", cache=True)  # type: ignore[untyped-decorator]
def _attend(
    q: Any, keys: Any, values: Any, singles: Any, piece: Any, next_piece: Any, window: Any, buffer: Any, out: Any,
    tile: Any,
) -> None:  # fmt: skip
    """All heads of a token on a piece of its keys: to `out` if it is the only one, else to `singles.mixed`."""
    num_kv_heads, panels_of_block, head_dim = keys.shape[1], keys.shape[2], keys.shape[3]
    num_heads, block_size, stride = q.shape[1], panels_of_block * PANEL, buffer.shape[1]
    group, token = num_heads // num_kv_heads, singles.owners[piece]
    table, context = singles.tables[token], singles.contexts[token]
    begin, end = _blocks_of(singles, piece, window, block_size)
    if begin >= end:
        singles.sums[piece] = np.float32(0.0)
        return
    bytes_of_block = _FLOAT * num_kv_heads * block_size * head_dim
    k, v, scores = keys.ctypes.data, values.ctypes.data, buffer.ctypes.data
    query = q[singles.tokens[token]].ctypes.data
    panel_bytes = _FLOAT * PANEL * head_dim
    for block in range(begin, end):
        key = k + table[block] * bytes_of_block
        following = (
            k + table[block + 1] * bytes_of_block if block + 1 < end else v + table[begin] * bytes_of_block
        )
        # The heads of a block lie one after the other, and are read so.
        for panel in range(num_kv_heads * panels_of_block):
            head, ahead = panel // panels_of_block, panel * panel_bytes
            place = (
                head * group * stride + ((block - begin) * panels_of_block + panel % panels_of_block) * PANEL
            )
            multiply_tile(
                tile, query + _FLOAT * head * group * head_dim, head_dim, group, key + ahead, head_dim,
                following + ahead, 0, scores + _FLOAT * place, stride, 0,
            )  # fmt: skip
    scale, width = np.float32(LOG2_E / np.sqrt(head_dim)), (end - begin) * block_size
    first_key, end_key = context - window - begin * block_size, context - begin * block_size
    _softmax(buffer[:, :width], first_key, end_key, scale, singles.tops[piece], singles.sums[piece])
    is_only = singles.firsts[token + 1] - singles.firsts[token] == 1
    into = out[singles.tokens[token]].ctypes.data if is_only else singles.mixed[piece].ctypes.data
    then = k
    if next_piece >= 0:
        first, _ = _blocks_of(singles, next_piece, window, block_size)
        then += singles.tables[singles.owners[next_piece], first] * bytes_of_block
    panel_bytes = _FLOAT * PANEL * block_size
    panels_of_head = head_dim // PANEL
    for block in range(begin, end):
        value = v + table[block] * bytes_of_block
        following = v + table[block + 1] * bytes_of_block if block + 1 < end else then
        tokens = min(block_size, context - block * block_size)
        for panel in range(num_kv_heads * panels_of_head):
            head, ahead = panel // panels_of_head, panel * panel_bytes
            place = head * group * head_dim + panel % panels_of_head * PANEL
            weights = scores + _FLOAT * (head * group * stride + (block - begin) * block_size)
            multiply_tile(
                tile, weights, stride, group, value + ahead, tokens, following + ahead, 0, into + _FLOAT * place,
                head_dim, block - begin,
            )  # fmt: skip


@njit(fastmath=FASTMATH, error_model="numpy", cache=True)  # type: ignore[untyped-decorator]
def _softmax(scores: Any, first: Any, end: Any, scale: Any, tops: Any, sums: Any) -> None:
    """Make weights of scores [num_heads, keys], 0 outside of keys `first` to `end`; keep each head's top and sum."""
    width = scores.shape[1]
    for head in range(len(scores)):
        for i in range(first):
            scores[head, i] = -np.inf
        for i in range(end, width):
            scores[head, i] = -np.inf
        place = scores[head].ctypes.data
        tops[head] = largest(place, width)
        sums[head] = exponentiate(place, width, scale, tops[head])
        share = np.float32(1.0) / sums[head]
        for i in range(width):
            scores[head, i] *= share


@njit(fastmath=FASTMATH, error_model="numpy", cache=True)  # type: ignore[untyped-decorator]
def _join(singles: Any, head_dim: Any, out: Any) -> None:
    """Fill `out` of tokens that have several pieces: their parts, weighed by their sums at one scale."""
    scale = np.float32(LOG2_E / np.sqrt(head_dim))
    for token in range(len(singles.tokens)):
        first, end = singles.firsts[token], singles.firsts[token + 1]
        if end - first == 1:
            continue
        for head in range(out.shape[1]):
            row, top, total = out[singles.tokens[token], head], np.float32(-np.inf), np.float32(0.0)
            for piece in range(first, end):
                if singles.sums[piece, head] != 0:
                    top = max(top, singles.tops[piece, head])
            row[:] = 0
            for piece in range(first, end):
                if singles.sums[piece, head] != 0:
                    weight = singles.sums[piece, head] * np.exp2(scale * (singles.tops[piece, head] - top))
                    total += weight
                    for channel in range(head_dim):
                        row[channel] += weight * singles.mixed[piece, head, channel]
            for channel in range(head_dim):
                row[channel] /= total
