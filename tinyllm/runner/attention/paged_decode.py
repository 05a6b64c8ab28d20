"""The CPU decode kernel: one query per row against its paged keys and values, read where they lie."""

from __future__ import annotations

import math

import numba
import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


def attend(
    q: Floats,
    k_cache: Floats,
    v_cache: Floats,
    block_tables: Ints,
    context_lens: Ints,
    window: int,
    scale: float,
    out: Floats,
    num_threads: int,
) -> None:
    """Attention of rows that have one new token each, already in the cache; fills `out`.

    Args:
        q, out: [rows, num_heads, head_dim].
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        block_tables: [rows, max_blocks].
        context_lens: [rows], tokens of each row, the new one included.
        window: how many latest tokens a query sees, at least 1.
        scale: of the scores.
        num_threads: at most so many threads; torch's own number keeps the two in step.
    """
    numba.set_num_threads(min(num_threads, numba.config.NUMBA_NUM_THREADS))
    _paged_decode(q, k_cache, v_cache, block_tables, context_lens, window, np.float32(scale), out)


def compile_now() -> None:
    """Compile (or load what an earlier run compiled), so that no step of a run pays for it: seconds the first time."""
    q, cache = np.empty((0, 1, 1), np.float32), np.empty((1, 1, 1, 1), np.float32)
    attend(q, cache, cache, np.empty((0, 1), np.int32), np.empty(0, np.int32), 1, 1.0, q, num_threads=1)


@njit(parallel=True, fastmath={"reassoc", "contract", "arcp", "nsz"}, cache=True)
def _paged_decode(q, k_cache, v_cache, block_tables, context_lens, window, scale, out):  # type: ignore[no-untyped-def]
    rows, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
    group = num_heads // num_kv_heads
    for task in prange(rows * num_kv_heads):
        row, kv_head = task // num_kv_heads, task % num_kv_heads
        length = context_lens[row]
        first = max(0, length - window)
        scores = np.empty((group, length - first), np.float32)
        for position in range(first, length):
            key = k_cache[block_tables[row, position // block_size], position % block_size, kv_head]
            for g in range(group):
                query = q[row, kv_head * group + g]
                dot = np.float32(0.0)
                for d in range(head_dim):
                    dot += query[d] * key[d]
                scores[g, position - first] = dot * scale
        for g in range(group):
            _softmax(scores[g])
        total = np.zeros((group, head_dim), np.float32)
        for position in range(first, length):
            value = v_cache[block_tables[row, position // block_size], position % block_size, kv_head]
            for g in range(group):
                weight = scores[g, position - first]
                for d in range(head_dim):
                    total[g, d] += weight * value[d]
        out[row, kv_head * group : (kv_head + 1) * group] = total


@njit(fastmath={"reassoc", "contract", "arcp", "nsz"}, cache=True, inline="always")
def _softmax(scores):  # type: ignore[no-untyped-def]
    """In place; the largest score is taken off first, so that no exponential overflows."""
    largest = scores[0]
    for i in range(len(scores)):
        largest = max(largest, scores[i])
    total = np.float32(0.0)
    for i in range(len(scores)):
        scores[i] = math.exp(scores[i] - largest)
        total += scores[i]
    for i in range(len(scores)):
        scores[i] /= total
