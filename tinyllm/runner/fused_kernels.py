"""The two halves of a LLaMA layer around attention, each one compiled function, for steps of a few tokens on the CPU.

Between the matrix products of such a step lie a dozen small operations a layer. Called one by one they take as long as
the products; here they cost nothing but their arithmetic. The numbers are those of `tinyllm.models.llama`, in float32.
All arrays are contiguous; a norm or bias that the model has not is empty.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from tinyllm.models.small_matmul import FASTMATH, add_small_matmul, small_matmul


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def before_attention(
    x: Any, input_norm: Any, qkv_weight: Any, qkv_bias: Any, q_norm: Any, k_norm: Any,
    k_cache: Any, v_cache: Any, cos: Any, sin: Any, slots: Any, epsilon: Any, q: Any,
) -> None:  # fmt: skip
    """Fill q [tokens, heads, head_dim], turned, from x [tokens, hidden]; put k and v into their slots.

    Args:
        k_cache, v_cache: [blocks, block_size, kv_heads, head_dim].
        cos, sin: [tokens, head_dim / 2].
        slots: [tokens].
    """
    normed = np.empty(x.shape, np.float32)
    qkv = np.empty((x.shape[0], qkv_weight.shape[0]), np.float32)
    norm(x, input_norm, epsilon, normed)
    small_matmul(normed, qkv_weight, qkv)
    _add_bias(qkv_bias, qkv)
    heads, head_dim = q.shape[1], q.shape[2]
    block_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    for token in range(x.shape[0]):
        row = qkv[token].reshape(heads + 2 * kv_heads, head_dim)
        block, offset = slots[token] // block_size, slots[token] % block_size
        for head in range(heads):
            _norm_head(row[head], q_norm, epsilon)
            _turn(row[head], cos[token], sin[token], q[token, head])
        for head in range(kv_heads):
            _norm_head(row[heads + head], k_norm, epsilon)
            _turn(row[heads + head], cos[token], sin[token], k_cache[block, offset, head])
            v_cache[block, offset, head] = row[heads + kv_heads + head]


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def after_attention(
    x: Any, attended: Any, o_weight: Any, o_bias: Any, post_norm: Any, gate_up_weight: Any, gate_up_bias: Any,
    down_weight: Any, down_bias: Any, epsilon: Any,
) -> None:  # fmt: skip
    """Add to x [tokens, hidden] what attention [tokens, heads · head_dim] gave, then the MLP's work."""
    add_small_matmul(attended, o_weight, x)
    _add_bias(o_bias, x)
    normed = np.empty(x.shape, np.float32)
    gate_up = np.empty((x.shape[0], gate_up_weight.shape[0]), np.float32)
    activated = np.empty((x.shape[0], gate_up_weight.shape[0] // 2), np.float32)
    norm(x, post_norm, epsilon, normed)
    small_matmul(normed, gate_up_weight, gate_up)
    _add_bias(gate_up_bias, gate_up)
    _silu_times_up(gate_up, activated)
    add_small_matmul(activated, down_weight, x)
    _add_bias(down_bias, x)


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def norm(x: Any, weight: Any, epsilon: Any, out: Any) -> None:
    """`out` = the root mean square norm of each row of x, weighted."""
    for token in range(x.shape[0]):
        square = np.float32(0.0)
        for channel in range(x.shape[1]):
            square += x[token, channel] * x[token, channel]
        scale = np.float32(1.0) / math.sqrt(square / np.float32(x.shape[1]) + epsilon)
        for channel in range(x.shape[1]):
            out[token, channel] = x[token, channel] * scale * weight[channel]


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _norm_head(vector: Any, weight: Any, epsilon: Any) -> None:
    if weight.shape[0] == 0:
        return
    square = np.float32(0.0)
    for i in range(weight.shape[0]):
        square += vector[i] * vector[i]
    scale = np.float32(1.0) / math.sqrt(square / np.float32(weight.shape[0]) + epsilon)
    for i in range(weight.shape[0]):
        vector[i] = vector[i] * scale * weight[i]


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _turn(vector: Any, cos: Any, sin: Any, out: Any) -> None:
    """Rotary positions: channels i and i + head_dim / 2 are a pair."""
    half = cos.shape[0]
    for i in range(half):
        first, second = vector[i], vector[half + i]
        out[i] = first * cos[i] - second * sin[i]
        out[half + i] = second * cos[i] + first * sin[i]


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _add_bias(bias: Any, out: Any) -> None:
    for token in range(out.shape[0]):
        for channel in range(bias.shape[0]):
            out[token, channel] += bias[channel]


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _silu_times_up(gate_up: Any, out: Any) -> None:
    width = out.shape[1]
    for token in range(out.shape[0]):
        for channel in range(width):
            gate = gate_up[token, channel]
            out[token, channel] = gate / (np.float32(1.0) + math.exp(-gate)) * gate_up[token, width + channel]
