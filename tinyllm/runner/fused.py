"""The compiled decoder beside the model: which steps it takes over, and how its arguments are laid out."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tinyllm.models.base import DecoderModel
from tinyllm.models.llama import LlamaForCausalLM, LlamaLayer
from tinyllm.models.matmul import ALIGNED, MEDIUM, SMALL
from tinyllm.models.small_matmul import use_threads
from tinyllm.runner.attention.paged_decode import PagedDecode
from tinyllm.runner.batch import FlatBatch
from tinyllm.runner.column_kernels import (
    add_bias_columns,
    norm_columns,
    rotate_and_store_columns,
    silu_times_up_columns,
)
from tinyllm.runner.fused_kernels import after_attention, before_attention, norm
from tinyllm.runner.kv_cache import KVCache

_NO_WINDOW: Final = 1 << 30


class _Layer(NamedTuple):
    """Arrays of one layer, in the order in which the compiled functions take them."""

    before: tuple[Any, ...]
    cache: tuple[Any, Any]
    window: int
    after: tuple[Any, ...]


class _Tokens(NamedTuple):
    """Of each token: cos and sin [tokens, head_dim / 2], slot, block table [tokens, max_blocks], context length."""

    cos: Any
    sin: Any
    slots: Any
    tables: Any
    lengths: Any


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
        self._compile()

    def _compile(self) -> None:
        angles, none = np.empty((0, self._model.config.head_dim // 2), np.float32), np.empty(0, np.int64)
        tokens = _Tokens(angles, angles, none, np.empty((0, 1), np.int32), np.empty(0, np.int32))
        embedded = torch.empty(0, self._model.config.hidden_size)
        self._rows(embedded.numpy(), tokens)
        self._columns(embedded, tokens)

    def takes(self, batch: FlatBatch) -> bool:
        """Whether the step is one for which this is the faster way: a few tokens, or not too many that all decode.

        A token by itself reads all of its context, which a chunk of a prompt better does together.
        """
        num_tokens = len(batch.input_ids)
        return num_tokens <= SMALL or (num_tokens <= MEDIUM and num_tokens == len(batch.query_lens))

    def __call__(self, batch: FlatBatch) -> Tensor:
        """The normed hidden states [num_tokens, hidden_size]; keys and values are then in the cache."""
        use_threads(torch.get_num_threads())
        cos, sin = self._model.rotary(batch.positions, torch.float32)
        row_of_token = np.repeat(np.arange(len(batch.query_lens)), batch.query_lens)
        tokens = _Tokens(
            cos[:, 0].numpy(),
            sin[:, 0].numpy(),
            batch.slot_mapping.numpy(),
            batch.block_tables.numpy()[row_of_token],
            batch.positions.numpy().astype(np.int32) + 1,
        )
        x = self._model.embed_tokens(batch.input_ids)
        if len(x) <= SMALL:
            return torch.from_numpy(self._rows(x.numpy(), tokens))
        return self._columns(x, tokens)

    def _rows(self, x: Any, tokens: _Tokens) -> Any:
        """A row a token, for a few of them: the weights are read once, by compiled code."""
        q, attended, flat = self._attention_buffers(len(x))
        for layer in self._layers:
            before_attention(
                x, *layer.before, *layer.cache, tokens.cos, tokens.sin, tokens.slots, self._epsilon, q
            )
            self._attend(q, *layer.cache, tokens.tables, tokens.lengths, layer.window, attended)
            after_attention(x, flat, *layer.after, self._epsilon)
        normed = np.empty_like(x)
        norm(x, self._model.norm.weight.numpy(), self._epsilon, normed)
        return normed

    def _columns(self, embedded: Tensor, tokens: _Tokens) -> Tensor:
        """A column a token: the products are the library's, with the weights on the left."""
        config, num_tokens = self._model.config, len(embedded)
        x = _columns(config.hidden_size, num_tokens).copy_(embedded.t())
        normed = _columns(config.hidden_size, num_tokens)
        qkv = _columns((config.num_heads + 2 * config.num_kv_heads) * config.head_dim, num_tokens)
        gate_up = _columns(2 * config.intermediate_size, num_tokens)
        activated = _columns(config.intermediate_size, num_tokens)
        q, attended, flat = self._attention_buffers(num_tokens)
        attended_columns = torch.from_numpy(flat).t()
        for layer in self._layers:
            input_norm, qkv_weight, qkv_bias, q_norm, k_norm = layer.before
            o_weight, o_bias, post_norm, gate_up_weight, gate_up_bias, down_weight, down_bias = layer.after
            norm_columns(x.numpy(), input_norm, self._epsilon, normed.numpy())
            torch.mm(torch.from_numpy(qkv_weight), normed, out=qkv)
            rotate_and_store_columns(
                qkv.numpy(), qkv_bias, q_norm, k_norm, tokens.cos, tokens.sin, tokens.slots, self._epsilon,
                q, *layer.cache,
            )  # fmt: skip
            self._attend(q, *layer.cache, tokens.tables, tokens.lengths, layer.window, attended)
            x.addmm_(torch.from_numpy(o_weight), attended_columns)
            add_bias_columns(o_bias, x.numpy())
            norm_columns(x.numpy(), post_norm, self._epsilon, normed.numpy())
            torch.mm(torch.from_numpy(gate_up_weight), normed, out=gate_up)
            silu_times_up_columns(gate_up.numpy(), gate_up_bias, activated.numpy())
            x.addmm_(torch.from_numpy(down_weight), activated)
            add_bias_columns(down_bias, x.numpy())
        norm_columns(x.numpy(), self._model.norm.weight.numpy(), self._epsilon, normed.numpy())
        return normed.t().contiguous()

    def _attention_buffers(self, num_tokens: int) -> tuple[Any, Any, Any]:
        """q and what attention gives, [tokens, heads, head_dim], the latter also as [tokens, heads · head_dim]."""
        config = self._model.config
        q = np.empty((num_tokens, config.num_heads, config.head_dim), np.float32)
        attended = np.empty_like(q)
        return q, attended, attended.reshape(num_tokens, config.num_heads * config.head_dim)


def _columns(channels: int, num_tokens: int) -> Tensor:
    """Uninitialised [channels, num_tokens], whose rows begin at whole cache lines."""
    return torch.empty(channels, -(-num_tokens // ALIGNED) * ALIGNED)[:, :num_tokens]


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
