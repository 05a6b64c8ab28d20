"""What lies between the matrix products of a LLaMA layer, for activations with a column a token.

The library multiplies fastest with the weights on the left (`tinyllm.models.matmul`), and then each token is a column.
Here that layout stays from the first layer to the last: no product has to be turned round. All in float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, prange

from tinyllm.models.small_matmul import FASTMATH

_TOKENS = 16
"""Columns that one thread takes at a time: whole cache lines, and a vector or two."""


@njit(parallel=True, fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def norm_columns(x: Any, weight: Any, epsilon: Any, out: Any) -> None:
    """`out` = the root mean square norm of each column of x [channels, tokens], weighted."""
    channels, tokens = x.shape
    for piece in prange((tokens + _TOKENS - 1) // _TOKENS):
        first, last = piece * _TOKENS, min(tokens, (piece + 1) * _TOKENS)
        scale = np.zeros(last - first, np.float32)
        for channel in range(channels):
            for token in range(first, last):
                scale[token - first] += x[channel, token] * x[channel, token]
        for i in range(last - first):
            scale[i] = np.float32(1.0) / math.sqrt(scale[i] / np.float32(channels) + epsilon)
        for channel in range(channels):
            for token in range(first, last):
                out[channel, token] = x[channel, token] * scale[token - first] * weight[channel]


@njit(parallel=True, fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def rotate_and_store_columns(
    qkv: Any, bias: Any, q_norm: Any, k_norm: Any, cos: Any, sin: Any, slots: Any, epsilon: Any,
    q: Any, k_cache: Any, v_cache: Any,
) -> None:  # fmt: skip
    """Fill q [tokens, heads, head_dim], turned, and the slots of k and v, from qkv [channels, tokens].

    Args:
        bias, q_norm, k_norm: empty where the model has none.
        cos, sin: [tokens, head_dim / 2].
        k_cache, v_cache: [blocks, block_size, kv_heads, head_dim].
    """
    heads, head_dim = q.shape[1], q.shape[2]
    block_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    half = head_dim // 2
    for token in prange(qkv.shape[1]):
        block, offset = slots[token] // block_size, slots[token] % block_size
        vector = np.empty(head_dim, np.float32)
        for head in range(heads + 2 * kv_heads):
            for i in range(head_dim):
                vector[i] = qkv[head * head_dim + i, token]
            if bias.shape[0]:
                for i in range(head_dim):
                    vector[i] += bias[head * head_dim + i]
            if head >= heads + kv_heads:
                v_cache[block, offset, head - heads - kv_heads] = vector
                continue
            weight = q_norm if head < heads else k_norm
            if weight.shape[0]:
                square = np.float32(0.0)
                for i in range(head_dim):
                    square += vector[i] * vector[i]
                scale = np.float32(1.0) / math.sqrt(square / np.float32(head_dim) + epsilon)
                for i in range(head_dim):
                    vector[i] = vector[i] * scale * weight[i]
            turned = q[token, head] if head < heads else k_cache[block, offset, head - heads]
            for i in range(half):
                first, second = vector[i], vector[half + i]
                turned[i] = first * cos[token, i] - second * sin[token, i]
                turned[half + i] = second * cos[token, i] + first * sin[token, i]


@njit(parallel=True, fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def silu_times_up_columns(gate_up: Any, bias: Any, out: Any) -> None:
    """`out` [width, tokens] = silu of the first half of gate_up [2 · width, tokens] times the second."""
    width, tokens = out.shape
    for channel in prange(width):
        gate_bias = bias[channel] if bias.shape[0] else np.float32(0.0)
        up_bias = bias[width + channel] if bias.shape[0] else np.float32(0.0)
        for token in range(tokens):
            gate = gate_up[channel, token] + gate_bias
            up = gate_up[width + channel, token] + up_bias
            out[channel, token] = gate / (np.float32(1.0) + math.exp(-gate)) * up


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def add_bias_columns(bias: Any, out: Any) -> None:
    """Add bias [channels], where there is one, to every column."""
    for channel in range(bias.shape[0]):
        for token in range(out.shape[1]):
            out[channel, token] += bias[channel]
