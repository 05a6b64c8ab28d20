"""The layers of a LLaMA-like model as one compiled function, for any step on the CPU.

Between the matrix products lie a dozen small operations a layer. Called one by one they take as long as the products of
a few rows; here they cost nothing but their arithmetic. The numbers are those of `tinyllm.models.llama`, in float32.
All arrays are contiguous, a row a token.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit, prange

from tinyllm.models.panels import FASTMATH, gated_panel_matmul, panel_matmul
from tinyllm.runner.attention.compiled import attend
from tinyllm.runner.attention.paged_decode import paged_decode
from tinyllm.runner.attention.panel_cache import store_key, store_value

_TOKENS: Final = 16
"""Tokens that a thread takes at a time; for so few, calling upon other threads takes longer than the work."""


class LayerWeights(NamedTuple):
    """Weights of all layers, [layers, ...] each; a norm or bias that the model has not is [layers, 0].

    Attributes:
        qkv, o, gate_up, down: in panels, all in one format.
        windows: int64 [layers], how many latest tokens a query sees.
    """

    input_norm: Any
    qkv: Any
    qkv_bias: Any
    q_norm: Any
    k_norm: Any
    o: Any
    o_bias: Any
    post_norm: Any
    gate_up: Any
    gate_up_bias: Any
    down: Any
    down_bias: Any
    windows: Any


class StepRoom(NamedTuple):
    """Room for a step's work, whose tokens go through half a layer in pieces.

    Attributes:
        q, attended: [tokens, heads, head_dim].
        normed, qkv, activated: [piece, hidden], [piece, (heads + 2 · kv_heads) · head_dim] and [piece, intermediate].
    """

    q: Any
    attended: Any
    normed: Any
    qkv: Any
    activated: Any


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def compute_layers(
    weights: Any, keys: Any, values: Any, epsilon: Any, x: Any, cos: Any, sin: Any, slots: Any, attention: Any,
    sampling: Any, last_singles: Any, room: Any, means: Any,
) -> Any:  # fmt: skip
    """Send x [tokens, hidden], which is used up, through all layers; return the rows of those that are sampled from.

    In the last layer the other tokens need nothing more than their keys and values.

    Args:
        keys, values: of all layers (`tinyllm.runner.attention.panel_cache`).
        cos, sin: [tokens, head_dim / 2].
        slots: [tokens].
        attention: `StepAttention` of the step.
        sampling: int64 [sampling rows], their tokens, in order.
        last_singles: `Singles` of those tokens.
        room: `StepRoom`.
        means: of the weights' format.
    """
    tile = means.plain_tile
    flat = room.attended.reshape(len(x), room.q.shape[1] * room.q.shape[2])
    last, piece = len(weights.windows) - 1, len(room.normed)
    for layer in range(last + 1):
        key, value, window = keys[layer], values[layer], weights.windows[layer]
        for first in range(0, len(x), piece):
            end = first + piece
            _before_attention(
                weights, layer, key, value, epsilon, x[first:end], cos[first:end], sin[first:end],
                slots[first:end], room, room.q[first:end], means,
            )  # fmt: skip
        if layer < last:
            attend(room.q, key, value, attention.singles, attention.chunks, window, room.attended, tile)
            _after_attention(weights, layer, epsilon, x, flat, room, means)
        elif len(sampling):
            paged_decode(room.q, key, value, last_singles, window, room.attended, tile)
    x, flat = x[sampling], flat[sampling]
    _after_attention(weights, last, epsilon, x, flat, room, means)
    return x


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _before_attention(
    weights: Any, layer: Any, keys: Any, values: Any, epsilon: Any, x: Any, cos: Any, sin: Any, slots: Any,
    room: Any, q: Any, means: Any,
) -> None:  # fmt: skip
    """Fill q of a piece, turned, from x; put k and v into their slots."""
    normed, qkv = room.normed[: len(x)], room.qkv[: len(x)]
    norm(x, weights.input_norm[layer], epsilon, normed)
    panel_matmul(normed, weights.qkv[layer], qkv, 0, means)
    _add_bias(weights.qkv_bias[layer], qkv)
    q_norm, k_norm = weights.q_norm[layer], weights.k_norm[layer]
    _rotate_and_store(qkv, q_norm, k_norm, keys, values, cos, sin, slots, epsilon, q)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _after_attention(
    weights: Any, layer: Any, epsilon: Any, x: Any, attended: Any, room: Any, means: Any
) -> None:  # fmt: skip
    """Add to x [tokens, hidden] what attention [tokens, heads · head_dim] gave, then the MLP's work."""
    piece = len(room.normed)
    for first in range(0, len(x), piece):
        part = x[first : first + piece]
        normed, activated = room.normed[: len(part)], room.activated[: len(part)]
        panel_matmul(attended[first : first + piece], weights.o[layer], part, 1, means)
        _add_bias(weights.o_bias[layer], part)
        norm(part, weights.post_norm[layer], epsilon, normed)
        gated_panel_matmul(normed, weights.gate_up[layer], weights.gate_up_bias[layer], activated, means)
        panel_matmul(activated, weights.down[layer], part, 1, means)
        _add_bias(weights.down_bias[layer], part)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def norm(x: Any, weight: Any, epsilon: Any, out: Any) -> None:
    """`out` = the root mean square norm of each row of x, weighted."""
    if len(x) <= _TOKENS:
        _norm_rows(x, weight, epsilon, out)
    else:
        _norm_many(x, weight, epsilon, out)


@njit(parallel=True, cache=True)  # type: ignore[untyped-decorator]
def _norm_many(x: Any, weight: Any, epsilon: Any, out: Any) -> None:
    for piece in prange((len(x) + _TOKENS - 1) // _TOKENS):
        first, last = piece * _TOKENS, (piece + 1) * _TOKENS
        _norm_rows(x[first:last], weight, epsilon, out[first:last])


@njit(fastmath=FASTMATH, error_model="numpy", cache=True)  # type: ignore[untyped-decorator]
def _norm_rows(x: Any, weight: Any, epsilon: Any, out: Any) -> None:
    for token in range(len(x)):
        square = np.float32(0.0)
        for channel in range(x.shape[1]):
            square += x[token, channel] * x[token, channel]
        scale = np.float32(1.0) / math.sqrt(square / np.float32(x.shape[1]) + epsilon)
        for channel in range(x.shape[1]):
            out[token, channel] = x[token, channel] * scale * weight[channel]


@njit(cache=True)  # type: ignore[untyped-decorator]
def _rotate_and_store(
    qkv: Any, q_norm: Any, k_norm: Any, keys: Any, values: Any, cos: Any, sin: Any, slots: Any, epsilon: Any,
    q: Any,
) -> None:  # fmt: skip
    if len(qkv) <= _TOKENS:
        _rotate_rows(qkv, q_norm, k_norm, keys, values, cos, sin, slots, epsilon, q)
    else:
        _rotate_many(qkv, q_norm, k_norm, keys, values, cos, sin, slots, epsilon, q)


@njit(parallel=True, cache=True)  # type: ignore[untyped-decorator]
def _rotate_many(
    qkv: Any, q_norm: Any, k_norm: Any, keys: Any, values: Any, cos: Any, sin: Any, slots: Any, epsilon: Any,
    q: Any,
) -> None:  # fmt: skip
    for piece in prange((len(qkv) + _TOKENS - 1) // _TOKENS):
        part = slice(piece * _TOKENS, (piece + 1) * _TOKENS)
        _rotate_rows(
            qkv[part], q_norm, k_norm, keys, values, cos[part], sin[part], slots[part], epsilon, q[part]
        )


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def _rotate_rows(
    qkv: Any, q_norm: Any, k_norm: Any, keys: Any, values: Any, cos: Any, sin: Any, slots: Any, epsilon: Any,
    q: Any,
) -> None:  # fmt: skip
    heads, head_dim, kv_heads = q.shape[1], q.shape[2], keys.shape[1]
    turned = np.empty(head_dim, np.float32)
    for token in range(len(qkv)):
        row = qkv[token].reshape(heads + 2 * kv_heads, head_dim)
        for head in range(heads):
            _norm_head(row[head], q_norm, epsilon)
            _turn(row[head], cos[token], sin[token], q[token, head])
        for head in range(kv_heads):
            _norm_head(row[heads + head], k_norm, epsilon)
            _turn(row[heads + head], cos[token], sin[token], turned)
            store_key(turned, slots[token], head, keys)
            store_value(row[heads + kv_heads + head], slots[token], head, values)


@njit(fastmath=FASTMATH, error_model="numpy", cache=True)  # type: ignore[untyped-decorator]
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
    if bias.shape[0]:
        for token in range(out.shape[0]):
            for channel in range(bias.shape[0]):
                out[token, channel] += bias[channel]
