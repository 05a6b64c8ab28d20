"""The compiled decoder beside the model: which steps it takes over, and how its arguments are laid out."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tinyllm.models.base import DecoderModel
from tinyllm.models.llama import LlamaForCausalLM, LlamaLayer
from tinyllm.models.small_matmul import use_threads
from tinyllm.runner.attention.paged_decode import PagedDecode
from tinyllm.runner.batch import FlatBatch
from tinyllm.runner.fused_kernels import after_attention, before_attention, norm
from tinyllm.runner.kv_cache import KVCache

_NO_WINDOW: Final = 1 << 30


class _Layer(NamedTuple):
    """Arrays of one layer, in the order in which the compiled functions take them."""

    before: tuple[Any, ...]
    cache: tuple[Any, Any]
    window: int
    after: tuple[Any, ...]


class FusedDecoder:
    """The forward pass of a LLaMA-like model (Qwen2 and Qwen3 too) over a step of a few tokens.

    Each token attends as a row of its own, so it does not matter which of them belong to one prompt. Compiled when
    made (or loaded from an earlier process), so that no step of a run pays for it.

    Args:
        model: in float32 on the CPU, with SiLU; its weights are used where they lie.
        kv_cache: of the runner; the same that its attention backend uses for the other steps.
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
        angles, tokens = np.empty((0, config.head_dim // 2), np.float32), np.empty(0, np.int64)
        x = np.empty((0, config.hidden_size), np.float32)
        self._run(x, angles, angles, tokens, np.empty((0, 1), np.int32), np.empty(0, np.int32))

    def __call__(self, batch: FlatBatch) -> Tensor:
        """The normed hidden states [num_tokens, hidden_size]; keys and values are then in the cache."""
        cos, sin = self._model.rotary(batch.positions, torch.float32)
        row_of_token = np.repeat(np.arange(len(batch.query_lens)), batch.query_lens)
        hidden = self._run(
            self._model.embed_tokens(batch.input_ids).numpy(),
            cos[:, 0].numpy(),
            sin[:, 0].numpy(),
            batch.slot_mapping.numpy(),
            batch.block_tables.numpy()[row_of_token],
            batch.positions.numpy().astype(np.int32) + 1,
        )
        return torch.from_numpy(hidden)

    def _run(self, x: Any, cos: Any, sin: Any, slots: Any, tables: Any, lengths: Any) -> Any:
        use_threads(torch.get_num_threads())
        config = self._model.config
        q = np.empty((len(x), config.num_heads, config.head_dim), np.float32)
        attended = np.empty_like(q)
        flat = attended.reshape(len(x), config.num_heads * config.head_dim)
        for layer in self._layers:
            before_attention(x, *layer.before, *layer.cache, cos, sin, slots, self._epsilon, q)
            self._attend(q, *layer.cache, tables, lengths, layer.window, attended)
            after_attention(x, flat, *layer.after, self._epsilon)
        normed = np.empty_like(x)
        norm(x, self._model.norm.weight.numpy(), self._epsilon, normed)
        return normed


def fused_decoder(model: DecoderModel, kv_cache: KVCache) -> FusedDecoder | None:
    """The compiled decoder of a model that it knows: of these families, in float32 on the CPU; else None."""
    if not isinstance(model, LlamaForCausalLM) or model.config.hidden_act != "silu":
        return None
    return FusedDecoder(model, kv_cache) if model.dtype == torch.float32 and kv_cache.k.is_cpu else None


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
