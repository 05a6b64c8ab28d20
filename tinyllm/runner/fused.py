"""The compiled decoder that computes a model's steps on the CPU: which models it takes, and how a step is laid out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tinyllm.models.base import DecoderModel
from tinyllm.models.formats.base import PANEL
from tinyllm.models.layers import Linear, RMSNorm
from tinyllm.models.llama import LlamaForCausalLM, LlamaLayer
from tinyllm.models.matmul import stacked
from tinyllm.models.memory import empty_in_large_pages
from tinyllm.models.panels import Means
from tinyllm.runner.attention.compiled import NO_WINDOW, StepAttention, singles_of
from tinyllm.runner.attention.panel_cache import LayerCache, panel_cache
from tinyllm.runner.batch import FlatBatch
from tinyllm.runner.fused_kernels import LayerWeights, StepRoom, compute_layers, norm
from tinyllm.runner.kv_cache import KVCache

_PIECE: Final = 512
"""Tokens that go through half a layer together: what they leave between its products should stay in a cache."""


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
        cache: of all layers.
    """

    def __init__(self, model: LlamaForCausalLM, cache: LayerCache) -> None:
        self._model = model
        self._weights = _weights_of(model)
        self._cache = cache
        self._dtype = _layers(model)[0].mlp.down_proj.weight.dtype
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
        config = self._model.config
        attention = StepAttention.of(batch, config)
        embedded = self._model.embed_tokens(batch.input_ids).numpy()
        x = self._room.array("x", *embedded.shape)
        x[:] = embedded
        sampling = batch.logits_rows.numpy()
        is_all_single = len(sampling) == len(x) == len(attention.singles.tokens)
        last = attention.singles if is_all_single else singles_of(batch, sampling, config)
        x = compute_layers(
            self._weights, *self._cache, self._epsilon, x, *self._angles(batch.positions),
            batch.slot_mapping.numpy(), attention, sampling, last, self._step_room(len(x)),
            Means.of(self._dtype),
        )  # fmt: skip
        norm(x, self._final_norm, self._epsilon, x)
        return torch.from_numpy(x)

    def _step_room(self, num_tokens: int) -> StepRoom:
        config, array = self._model.config, self._room.array
        rows, heads = min(num_tokens, _PIECE), (num_tokens, config.num_heads, config.head_dim)
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        return StepRoom(
            array("q", *heads),
            array("attended", *heads),
            array("normed", rows, config.hidden_size),
            array("qkv", rows, width),
            array("activated", rows, config.intermediate_size),
        )

    def _angles(self, positions: Tensor) -> tuple[Any, Any]:
        """Cosines and sines [tokens, head_dim / 2] of positions [tokens], from tables that grow as they are needed."""
        needed = int(positions.max()) + 1
        if needed > len(self._tables[0]):
            everywhere = torch.arange(max(needed, 2 * len(self._tables[0])))
            cos, sin = self._model.rotary(everywhere, torch.float32)
            self._tables = cos[:, 0].numpy(), sin[:, 0].numpy()
        at = positions.numpy()
        return self._tables[0][at], self._tables[1][at]


def fused_decoder(model: DecoderModel, kv_cache: KVCache) -> FusedDecoder | None:
    """The compiled decoder of a model that it knows: of these families, packed, its sizes whole panels; else None."""
    if not isinstance(model, LlamaForCausalLM) or model.config.hidden_act != "silu":
        return None
    config = model.config
    cache = panel_cache(kv_cache, config)
    is_packed = model.lm_head.weight.dim() == 3
    if cache is None or not is_packed or config.hidden_size % PANEL or config.intermediate_size % PANEL:
        return None
    return FusedDecoder(model, cache)


def _layers(model: LlamaForCausalLM) -> list[LlamaLayer]:
    return [layer for layer in model.layers if isinstance(layer, LlamaLayer)]


def _weights_of(model: LlamaForCausalLM) -> LayerWeights:
    layers = _layers(model)
    attentions, mlps = [layer.self_attn for layer in layers], [layer.mlp for layer in layers]
    windows = [model.config.sliding_window_of(number) or NO_WINDOW for number in range(len(layers))]
    return LayerWeights(
        _norms([layer.input_layernorm for layer in layers]),
        *_matrices([each.qkv_proj for each in attentions]),
        _norms([each.q_norm for each in attentions]),
        _norms([each.k_norm for each in attentions]),
        *_matrices([each.o_proj for each in attentions]),
        _norms([layer.post_attention_layernorm for layer in layers]),
        *_matrices([each.gate_up_proj for each in mlps]),
        *_matrices([each.down_proj for each in mlps]),
        np.array(windows, np.int64),
    )


def _matrices(linears: Sequence[Linear]) -> tuple[Any, Any]:
    """Weights and biases of a matrix of all layers."""
    return stacked([each.weight for each in linears]).numpy(), _vectors([each.bias for each in linears])


def _norms(norms: Sequence[RMSNorm | None]) -> Any:
    return _vectors([None if each is None else each.weight for each in norms])


def _vectors(tensors: Sequence[Tensor | None]) -> Any:
    """Float32 [layers, n], or [layers, 0] for none."""
    present = [each.detach() for each in tensors if each is not None]
    return torch.stack(present).numpy() if present else np.empty((len(tensors), 0), np.float32)
