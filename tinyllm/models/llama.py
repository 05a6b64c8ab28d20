"""The LLaMA decoder: RMS norm, rotary positions, grouped-query attention, gated MLP.

Qwen2 and Qwen3 are the same decoder under other flags of `ModelConfig` (see `qwen.py`).
Source: Touvron et al. 2023; names and semantics as in Transformers' `LlamaForCausalLM`.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from tinyllm.models.base import Attend, DecoderModel
from tinyllm.models.config import ConfigFile, ModelConfig
from tinyllm.models.layers import Linear, RMSNorm, activation, check_activation
from tinyllm.models.rope import RotaryEmbedding, parse_rope, rotate

SLIDING: Final = "sliding_attention"
FULL: Final = "full_attention"


class LlamaAttention(nn.Module):
    """q, k and v in one matrix: rows of q, then of k, then of v."""

    def __init__(self, config: ModelConfig, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        self.heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self.qkv_proj = Linear(
            config.hidden_size, sum(self.heads) * config.head_dim, bias=config.attention_bias, dtype=dtype
        )
        self.o_proj = Linear(
            config.num_heads * config.head_dim,
            config.hidden_size,
            bias=config.attention_output_bias,
            dtype=dtype,
        )
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        num_tokens = x.shape[0]
        qkv = self.qkv_proj(x).view(num_tokens, sum(self.heads), self.head_dim)
        num_heads, num_kv_heads, _ = self.heads
        # q and k lie side by side, so one rotation serves both.
        qk, v = torch.split(qkv, [num_heads + num_kv_heads, num_kv_heads], dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat((self.q_norm(qk[:, :num_heads]), self.k_norm(qk[:, num_heads:])), dim=1)
        q, k = torch.split(rotate(qk, cos, sin), [num_heads, num_kv_heads], dim=1)
        out: Tensor = self.o_proj(attend(self.layer, q, k, v).flatten(1))
        return out

    def checkpoint_views(self) -> dict[str, Tensor]:
        sizes = [heads * self.head_dim for heads in self.heads]
        views = named_slices(self.qkv_proj, ("q_proj", "k_proj", "v_proj"), sizes)
        views |= named_slices(self.o_proj, ("o_proj",), [self.o_proj.weight.shape[0]])
        if self.q_norm is not None and self.k_norm is not None:
            views |= {"q_norm.weight": self.q_norm.weight, "k_norm.weight": self.k_norm.weight}
        return views


class LlamaMLP(nn.Module):
    """`down(act(gate(x)) * up(x))`, gate and up in one matrix: rows of gate, then of up."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        width, bias = config.intermediate_size, config.mlp_bias
        self.gate_up_proj = Linear(config.hidden_size, 2 * width, bias=bias, dtype=dtype)
        self.down_proj = Linear(width, config.hidden_size, bias=bias, dtype=dtype)
        self.act = activation(config.hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        out: Tensor = self.down_proj(self.act(gate) * up)
        return out

    def checkpoint_views(self) -> dict[str, Tensor]:
        width = self.gate_up_proj.weight.shape[0] // 2
        views = named_slices(self.gate_up_proj, ("gate_proj", "up_proj"), [width, width])
        return views | named_slices(self.down_proj, ("down_proj",), [self.down_proj.weight.shape[0]])


class LlamaLayer(nn.Module):
    def __init__(self, config: ModelConfig, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = LlamaAttention(config, layer, dtype)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = LlamaMLP(config, dtype)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, attend)
        x = x + self.mlp(self.post_attention_layernorm(x))
        return x

    def checkpoint_views(self) -> dict[str, Tensor]:
        views: dict[str, Tensor] = {
            "input_layernorm.weight": self.input_layernorm.weight,
            "post_attention_layernorm.weight": self.post_attention_layernorm.weight,
        }
        views |= {f"self_attn.{name}": view for name, view in self.self_attn.checkpoint_views().items()}
        return views | {f"mlp.{name}": view for name, view in self.mlp.checkpoint_views().items()}


class LlamaForCausalLM(DecoderModel):
    """LLaMA 1 to 3, TinyLlama, SmolLM2 and whatever else has `architectures: ["LlamaForCausalLM"]`."""

    base_prefix = "model."
    embedding_name = "model.embed_tokens.weight"

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__(config, dtype)
        if config.rope is None:
            raise ValueError("a LLaMA decoder needs rotary settings")
        self.layers = nn.ModuleList(LlamaLayer(config, layer, dtype) for layer in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.rotary = RotaryEmbedding(config.rope, config.head_dim)

    @classmethod
    def parse_config(cls, file: ConfigFile) -> ModelConfig:
        # Transformers' LLaMA has no window: to read on would silently run another model.
        if file.flag("use_sliding_window", True):
            file.refuse("sliding_window")
        if SLIDING in (file.values.get("layer_types") or ()):
            file.refuse("layer_types")
        bias = file.flag("attention_bias", False)
        return llama_config(
            file, attention_bias=bias, attention_output_bias=bias, mlp_bias=file.flag("mlp_bias", False)
        )

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        cos, sin = self.rotary(positions, self.dtype)
        x: Tensor = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, cos, sin, attend)
        x = self.norm(x)
        return x

    def checkpoint_views(self) -> dict[str, Tensor]:
        views: dict[str, Tensor] = {
            self.embedding_name: self.embed_tokens.weight,
            "model.norm.weight": self.norm.weight,
        }
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, LlamaLayer)
            views |= {f"model.layers.{index}.{name}": view for name, view in layer.checkpoint_views().items()}
        if not self.config.tie_word_embeddings:
            views["lm_head.weight"] = self.lm_head.weight
        return views


def named_slices(linear: Linear, names: tuple[str, ...], sizes: list[int]) -> dict[str, Tensor]:
    """Checkpoint names of the matrices that lie fused in `linear`, each with its rows of weight and bias."""
    views = {
        f"{name}.weight": rows for name, rows in zip(names, torch.split(linear.weight, sizes), strict=True)
    }
    if linear.bias is not None:
        views |= {
            f"{name}.bias": rows for name, rows in zip(names, torch.split(linear.bias, sizes), strict=True)
        }
    return views


def llama_config(file: ConfigFile, **flags: Any) -> ModelConfig:
    """The settings that LLaMA and its relatives share; `flags` are the fields of `ModelConfig` in which they differ."""
    hidden_size, num_heads = file.integer("hidden_size"), file.integer("num_attention_heads")
    max_position_embeddings = file.integer("max_position_embeddings")
    if file.values.get("head_dim") is None and hidden_size % num_heads:
        raise file.error(
            f"hidden_size {hidden_size} is no multiple of {num_heads} attention heads", "give head_dim"
        )
    settings: dict[str, Any] = {
        "architecture": "",
        "vocab_size": file.integer("vocab_size"),
        "hidden_size": hidden_size,
        "num_layers": file.integer("num_hidden_layers"),
        "num_heads": num_heads,
        "num_kv_heads": file.integer("num_key_value_heads", num_heads),
        "head_dim": file.integer("head_dim", hidden_size // num_heads),
        "intermediate_size": file.integer("intermediate_size"),
        "max_position_embeddings": max_position_embeddings,
        "norm_eps": file.number("rms_norm_eps", 1e-6),
        "hidden_act": check_activation(file, "hidden_act", "silu"),
        "rope": parse_rope(file, max_position_embeddings),
        "tie_word_embeddings": file.flag("tie_word_embeddings", False),
    }
    return ModelConfig(**(settings | flags))
