"""The compiled decoder that computes a model's steps on the CPU: which models it takes, and how a step is laid out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tinyllm.models.base import DecoderModel
from tinyllm.models.formats.base import PANEL
from tinyllm.models.layers import Linear
from tinyllm.models.llama import LlamaForCausalLM, LlamaLayer
from tinyllm.models.memory import empty_in_large_pages
from tinyllm.models.panels import Means
from tinyllm.runner.attention.compiled import StepAttention
from tinyllm.runner.attention.panel_cache import LayerCache, layer_caches
from tinyllm.runner.batch import FlatBatch
from tinyllm.runner.fused_kernels import after_attention, before_attention, norm
from tinyllm.runner.kv_cache import KVCache

_PIECE: Final = 512
"""Tokens that go through half a layer together: what they leave between its products should stay in a cache."""


class _Layer(NamedTuple):
    """Arrays of one layer, in the order in which the compiled functions take them."""

    before: tuple[Any, ...]
    cache: LayerCache
    window: int | None
    after: tuple[Any, ...]


class _Piece(NamedTuple):
    """Some tokens of a step: what the compiled functions take of them, and room for their work."""

    before: tuple[Any, ...]
    after: tuple[Any, ...]


class _Room:
    """Arrays that every step uses again, in large pages: no step pays for new memory, nor for looking up its pages."""

    def __init__(self) -> None:
        self._arrays: dict[str, Any] = {}

    def array(self, name: str, *shape: int) -> Any:
        """The uninitialised float32 array of that name, of this shape until it is asked for again."""
        size = math.prod(shape)
        if name not in self._arrays or len(self._arrays[name]) < size:
            self._arrays[name] = empty_in_large_pages((size,), torch.float32).numpy()
        return self._arrays[name][:size].reshape(shape)


class FusedDecoder:
    """The forward pass of a LLaMA-like model (Qwen2 and Qwen3 too) over any step.

    Compiled when made (or loaded from an earlier process), so that no step of a run pays for it.

    Args:
        model: in float32 on the CPU, packed, with SiLU; its weights are used where they lie.
        caches: of each layer.
    """

    def __init__(self, model: LlamaForCausalLM, caches: Sequence[LayerCache]) -> None:
        self._model = model
        self._layers = [
            _layer(layer, cache, model.config.sliding_window_of(number))
            for number, (layer, cache) in enumerate(zip(model.layers, caches, strict=True))
        ]
        # All of them share a format.
        projections = (each for each in model.layers.modules() if isinstance(each, Linear))
        self._dtype = next(projections).weight.dtype
        self._room = _Room()
        self._tables: tuple[Any, Any] = np.empty((0, 0), np.float32), np.empty((0, 0), np.float32)
        self._epsilon = np.float32(model.config.norm_eps)
        self._final_norm = model.norm.weight.numpy()
        self._compile()

    def _compile(self) -> None:
        """Run a chunk and a single token, which leave nothing behind that anybody reads."""
        for chunk in (1, 8):
            ids, slots = torch.zeros(chunk, dtype=torch.int64), torch.arange(chunk)
            lengths, start = np.array([chunk], np.int32), np.array([0, chunk], np.int32)
            self(
                FlatBatch(
                    ids, slots, slots, torch.zeros(1, 1, dtype=torch.int32), ids, start, lengths, lengths
                )
            )

    def __call__(self, batch: FlatBatch) -> Tensor:
        """The normed hidden states of the sampling rows, [num_sampling_rows, hidden_size].

        Keys and values of all tokens are then in the cache. In the last layer the other tokens need nothing more.
        """
        means, config = Means.of(self._dtype), self._model.config
        attention = StepAttention.of(batch, config)
        embedded = self._model.embed_tokens(batch.input_ids).numpy()
        x = self._room.array("x", *embedded.shape)
        x[:] = embedded
        q, attended = (
            self._room.array(name, len(x), config.num_heads, config.head_dim) for name in ("q", "attended")
        )
        pieces = self._pieces(batch, x, q, attended)
        for layer in self._layers[:-1]:
            for piece in pieces:
                before_attention(*layer.before, *layer.cache, self._epsilon, *piece.before, means)
            attention.attend(q, layer.cache, layer.window, attended)
            for piece in pieces:
                after_attention(*layer.after, self._epsilon, *piece.after, means)
        layer, sampling = self._layers[-1], batch.logits_rows.numpy()
        for piece in pieces:
            before_attention(*layer.before, *layer.cache, self._epsilon, *piece.before, means)
        if len(sampling) < len(x):
            attention = attention.of_tokens(batch, sampling, config)
        attention.attend(q, layer.cache, layer.window, attended)
        x, attended = x[sampling], attended[sampling]
        normed = np.empty_like(x)
        for after in self._after(x, attended, normed):
            after_attention(*layer.after, self._epsilon, *after, means)
        norm(x, self._final_norm, self._epsilon, normed)
        return torch.from_numpy(normed)

    def _pieces(self, batch: FlatBatch, x: Any, q: Any, attended: Any) -> list[_Piece]:
        config, num_tokens = self._model.config, len(x)
        cos, sin = self._angles(batch.positions)
        slots = batch.slot_mapping.numpy()
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        rows = min(num_tokens, _PIECE)
        normed, qkv = (
            self._room.array(*each) for each in (("normed", rows, config.hidden_size), ("qkv", rows, width))
        )
        after = self._after(x, attended, normed)
        pieces = []
        for first in range(0, num_tokens, _PIECE):
            tokens = slice(first, first + _PIECE)
            size = len(x[tokens])
            before = x[tokens], cos[tokens], sin[tokens], slots[tokens], normed[:size], qkv[:size], q[tokens]
            pieces.append(_Piece(before, next(after)))
        return pieces

    def _angles(self, positions: Tensor) -> tuple[Any, Any]:
        """Cosines and sines [tokens, head_dim / 2] of positions [tokens], from tables that grow as they are needed."""
        needed = int(positions.max()) + 1
        if needed > len(self._tables[0]):
            everywhere = torch.arange(max(needed, 2 * len(self._tables[0])))
            cos, sin = self._model.rotary(everywhere, torch.float32)
            self._tables = cos[:, 0].numpy(), sin[:, 0].numpy()
        at = positions.numpy()
        return self._tables[0][at], self._tables[1][at]

    def _after(self, x: Any, attended: Any, normed: Any) -> Iterator[tuple[Any, ...]]:
        """What follows attention, for x [tokens, hidden] and attended [tokens, heads, head_dim], piece by piece."""
        config, num_tokens = self._model.config, len(x)
        flat = attended.reshape(num_tokens, config.num_heads * config.head_dim)
        activated = self._room.array("activated", min(num_tokens, _PIECE), config.intermediate_size)
        for first in range(0, num_tokens, _PIECE):
            tokens = slice(first, first + _PIECE)
            size = len(x[tokens])
            yield x[tokens], flat[tokens], normed[:size], activated[:size]


def fused_decoder(model: DecoderModel, kv_cache: KVCache) -> FusedDecoder | None:
    """The compiled decoder of a model that it knows: of these families, packed, its sizes whole panels; else None."""
    if not isinstance(model, LlamaForCausalLM) or model.config.hidden_act != "silu":
        return None
    config = model.config
    caches = layer_caches(kv_cache, config)
    is_packed = model.lm_head.weight.dim() == 3
    if caches is None or not is_packed or config.hidden_size % PANEL or config.intermediate_size % PANEL:
        return None
    return FusedDecoder(model, caches)


def _layer(layer: nn.Module, cache: LayerCache, window: int | None) -> _Layer:
    assert isinstance(layer, LlamaLayer)
    attention, mlp = layer.self_attn, layer.mlp
    before = (
        layer.input_layernorm.weight,
        attention.qkv_proj.weight,
        attention.qkv_proj.bias,
        attention.q_norm.weight if attention.q_norm else None,
        attention.k_norm.weight if attention.k_norm else None,
    )
    after = (
        attention.o_proj.weight,
        attention.o_proj.bias,
        layer.post_attention_layernorm.weight,
        mlp.gate_up_proj.weight,
        mlp.gate_up_proj.bias,
        mlp.down_proj.weight,
        mlp.down_proj.bias,
    )
    return _Layer(_arrays(before), cache, window, _arrays(after))


def _arrays(tensors: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
    return tuple(np.empty(0, np.float32) if tensor is None else tensor.numpy() for tensor in tensors)
