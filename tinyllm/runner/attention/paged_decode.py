"""The CPU decode kernel: one query per row against its paged keys and values, read where they lie."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from tinyllm.models.panels import FASTMATH, use_threads
from tinyllm.runner.attention.softmax import exponentiate

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


class PagedDecode:
    """Attention of rows that have one new token each, already in the cache.

    Compiled when made (or loaded from an earlier process), so that no step of a run pays for it.

    Args:
        num_heads, num_kv_heads, head_dim: of the model, constants of the compiled code.

    Attributes:
        kernel: the compiled code; takes what a call takes, less the number of threads.
    """

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        self.kernel = _kernel(num_heads // num_kv_heads, head_dim)
        q = np.empty((0, num_heads, head_dim), np.float32)
        cache = np.empty((1, 1, num_kv_heads, head_dim), np.float32)
        none = np.empty(0, np.int32)
        self(q, cache, cache, none, np.empty((0, 1), np.int32), none, 1, q, num_threads=1)

    def __call__(
        self,
        q: Floats,
        k_cache: Floats,
        v_cache: Floats,
        tokens: Ints,
        block_tables: Ints,
        context_lens: Ints,
        window: int,
        out: Floats,
        num_threads: int,
    ) -> None:
        """Fill `out` at these tokens.

        Args:
            q, out: [num_tokens, num_heads, head_dim].
            k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim].
            tokens: int32 [rows], the index of each row's token in q and out.
            block_tables: int32 [rows, max_blocks].
            context_lens: int32 [rows], tokens of each row, the new one included.
            window: how many latest tokens a query sees, at least 1.
            num_threads: at most so many threads.
        """
        use_threads(num_threads)
        self.kernel(q, k_cache, v_cache, tokens, block_tables, context_lens, window, out)


@cache
def _kernel(group: int, head_dim: int) -> Callable[..., None]:
    """The kernel for `group` query heads a KV head: constant sizes let the compiler unroll."""
    scale = np.float32(head_dim**-0.5)

    @njit(parallel=True, fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
    def paged_decode(
        q: Any,
        k_cache: Any,
        v_cache: Any,
        tokens: Any,
        block_tables: Any,
        context_lens: Any,
        window: Any,
        out: Any,
    ) -> None:
        block_size, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
        for task in prange(len(tokens) * num_kv_heads):
            row, kv_head = task // num_kv_heads, task % num_kv_heads
            first_head = kv_head * group
            queries = q[tokens[row], first_head : first_head + group]
            length = context_lens[row]
            first = max(0, length - window)
            scores = np.empty((group, length - first), np.float32)
            for position in range(first, length):
                key = k_cache[block_tables[row, position // block_size], position % block_size, kv_head]
                for g in range(group):
                    dot = np.float32(0.0)
                    for d in range(head_dim):
                        dot += queries[g, d] * key[d]
                    scores[g, position - first] = dot * scale
            shares = np.empty(group, np.float32)
            for g in range(group):
                shares[g] = np.float32(1.0) / exponentiate(scores[g])
            total = np.zeros((group, head_dim), np.float32)
            for position in range(first, length):
                value = v_cache[block_tables[row, position // block_size], position % block_size, kv_head]
                for g in range(group):
                    weight = scores[g, position - first]
                    for d in range(head_dim):
                        total[g, d] += weight * value[d]
            for g in range(group):
                for d in range(head_dim):
                    out[tokens[row], first_head + g, d] = total[g, d] * shares[g]

    return paged_decode  # type: ignore[no-any-return]
