"""The compiled decoder that computes a model's steps on the CPU: which models it takes, and how a step is laid out."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tinyllm.models.base import DecoderModel
from tinyllm.models.llama import LlamaForCausalLM, LlamaLayer
from tinyllm.models.panels import use_threads
from tinyllm.models.tile import PANEL
from tinyllm.runner.attention.paged_decode import PagedDecode
from tinyllm.runner.attention.paged_prefill import Chunks, paged_prefill
from tinyllm.runner.batch import FlatBatch
from tinyllm.runner.fused_kernels import after_attention, before_attention, norm
from tinyllm.runner.kv_cache import KVCache

_NO_WINDOW: Final = 1 << 30

_CHUNK: Final = 4
"""New tokens from which a row attends as a chunk; fewer attend one by one, without laying out their context."""


class _Layer(NamedTuple):
    """Arrays of one layer, in the order in which the compiled functions take them."""

    before: tuple[Any, ...]
    cache: tuple[Any, Any]
    window: int
    after: tuple[Any, ...]


class _Singles(NamedTuple):
    """Tokens that attend one by one: int32 index, block table [tokens, max_blocks], context length."""

    tokens: Any
    tables: Any
    lengths: Any


class FusedDecoder:
    """The forward pass of a LLaMA-like model (Qwen2 and Qwen3 too) over any step.

    Compiled when made (or loaded from an earlier process), so that no step of a run pays for it.

    Args:
        model: in float32 on the CPU, packed, with SiLU; its weights are used where they lie.
        kv_cache: of the runner.
    """

    def __init__(self, model: LlamaForCausalLM, kv_cache: KVCache) -> None:
        config = model.config
        self._model = model
        self._attend = PagedDecode(config.num_heads, config.num_kv_heads, config.head_dim).kernel
        caches = zip(kv_cache.k.numpy(), kv_cache.v.numpy(), strict=True)
        self._layers = [
            _layer(layer, cache, config.sliding_window_of(number) or _NO_WINDOW)
            for number, (layer, cache) in enumerate(zip(model.layers, caches, strict=True))
        ]
        self._epsilon = np.float32(config.norm_eps)
        self._final_norm = model.norm.weight.numpy()
        self(_empty_batch())

    def __call__(self, batch: FlatBatch) -> Tensor:
        """The normed hidden states [num_tokens, hidden_size]; keys and values are then in the cache."""
        use_threads(torch.get_num_threads())
        config, num_tokens = self._model.config, len(batch.input_ids)
        cos, sin = (angles[:, 0].numpy() for angles in self._model.rotary(batch.positions, torch.float32))
        slots = batch.slot_mapping.numpy()
        singles, chunks = self._singles(batch), self._chunks(batch)
        x = self._model.embed_tokens(batch.input_ids).contiguous().numpy()
        normed = np.empty_like(x)
        head_dim, heads = config.head_dim, config.num_heads
        qkv = np.empty((num_tokens, (heads + 2 * config.num_kv_heads) * head_dim), np.float32)
        activated = np.empty((num_tokens, config.intermediate_size), np.float32)
        q = np.empty((num_tokens, heads, head_dim), np.float32)
        attended = np.empty_like(q)
        flat = attended.reshape(num_tokens, heads * head_dim)
        for layer in self._layers:
            before_attention(x, *layer.before, *layer.cache, cos, sin, slots, self._epsilon, normed, qkv, q)
            paged_prefill(q, *layer.cache, chunks, layer.window, attended)
            self._attend(q, *layer.cache, *singles, layer.window, attended)
            after_attention(x, flat, *layer.after, self._epsilon, normed, activated)
        norm(x, self._final_norm, self._epsilon, normed)
        return torch.from_numpy(normed)

    def _singles(self, batch: FlatBatch) -> _Singles:
        row_of_token = np.repeat(np.arange(len(batch.query_lens)), batch.query_lens)
        tokens = np.flatnonzero(batch.query_lens[row_of_token] < _CHUNK)
        tables = batch.block_tables.numpy()[row_of_token[tokens]]
        lengths = batch.positions.numpy()[tokens].astype(np.int32) + 1
        return _Singles(tokens.astype(np.int32), tables, lengths)

    def _chunks(self, batch: FlatBatch) -> Chunks:
        config = self._model.config
        rows = np.flatnonzero(batch.query_lens >= _CHUNK)
        return Chunks.of(
            batch.query_start[rows].astype(np.int64),
            batch.query_lens[rows].astype(np.int64),
            batch.context_lens[rows].astype(np.int64),
            batch.block_tables.numpy()[rows],
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            group=config.num_heads // config.num_kv_heads,
        )


def fused_decoder(model: DecoderModel, kv_cache: KVCache) -> FusedDecoder | None:
    """The compiled decoder of a model that it knows: of these families, packed, its sizes whole panels; else None."""
    if not isinstance(model, LlamaForCausalLM) or model.config.hidden_act != "silu":
        return None
    config = model.config
    heads = config.num_heads + 2 * config.num_kv_heads
    sizes = (config.hidden_size, config.intermediate_size, heads * config.head_dim)
    is_packed = model.lm_head.weight.dim() == 3 and kv_cache.k.is_cpu
    return FusedDecoder(model, kv_cache) if is_packed and not any(size % PANEL for size in sizes) else None


def _empty_batch() -> FlatBatch:
    none, rows = torch.empty(0, dtype=torch.int64), np.empty(0, np.int32)
    return FlatBatch(none, none, none, torch.empty(0, 1, dtype=torch.int32), none, rows, rows, rows)


def _layer(layer: nn.Module, cache: tuple[Any, Any], window: int) -> _Layer:
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
