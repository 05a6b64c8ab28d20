"""GPT-2: layer norm, learned positions, one head per key and value, plain MLP (Radford et al. 2019).

Names and semantics as in Transformers' `GPT2LMHeadModel`.
"""

from __future__ import annotations

import re
from typing import Final

import torch
from torch import Tensor, nn

from tinyllm.errors import InputError
from tinyllm.models.base import Attend, DecoderModel
from tinyllm.models.config import ConfigFile, ModelConfig
from tinyllm.models.layers import Embedding, LayerNorm, Linear, activation, check_activation

_MASK_BUFFER: Final = re.compile(r"(^|\.)h\.\d+\.attn\.(bias|masked_bias)$")


class GPT2Layer(nn.Module):
    def __init__(self, config: ModelConfig, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        hidden, inner = config.hidden_size, config.intermediate_size
        self.ln_1 = LayerNorm(hidden, config.norm_eps)
        self.c_attn = Linear(hidden, 3 * hidden, bias=True, dtype=dtype)
        self.attn_proj = Linear(hidden, hidden, bias=True, dtype=dtype)
        self.ln_2 = LayerNorm(hidden, config.norm_eps)
        self.c_fc = Linear(hidden, inner, bias=True, dtype=dtype)
        self.mlp_proj = Linear(inner, hidden, bias=True, dtype=dtype)
        self.act = activation(config.hidden_act)

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        num_tokens = x.shape[0]
        qkv = self.c_attn(self.ln_1(x)).view(num_tokens, 3, self.num_heads, self.head_dim)
        attended = attend(self.layer, *qkv.unbind(dim=1))
        x = x + self.attn_proj(attended.flatten(1))
        x = x + self.mlp_proj(self.act(self.c_fc(self.ln_2(x))))
        return x

    def checkpoint_views(self) -> dict[str, Tensor]:
        norms = {"ln_1": self.ln_1, "ln_2": self.ln_2}
        matrices = {
            "attn.c_attn": self.c_attn,
            "attn.c_proj": self.attn_proj,
            "mlp.c_fc": self.c_fc,
            "mlp.c_proj": self.mlp_proj,
        }
        views: dict[str, Tensor] = {}
        for name, norm in norms.items():
            views |= {f"{name}.weight": norm.weight, f"{name}.bias": norm.bias}
        for name, matrix in matrices.items():
            assert matrix.bias is not None
            # A checkpoint holds Conv1D weights, [in, out].
            views |= {f"{name}.weight": matrix.weight.t(), f"{name}.bias": matrix.bias}
        return views


class GPT2LMHeadModel(DecoderModel):
    """GPT-2 in its four sizes, DistilGPT-2 and their relatives."""

    base_prefix = "transformer."
    embedding_name = "transformer.wte.weight"

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__(config, dtype)
        self.embed_positions = Embedding(config.max_position_embeddings, config.hidden_size, dtype)
        self.layers = nn.ModuleList(GPT2Layer(config, layer, dtype) for layer in range(config.num_layers))
        self.norm = LayerNorm(config.hidden_size, config.norm_eps)

    @classmethod
    def parse_config(cls, file: ConfigFile) -> ModelConfig:
        for key in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"):
            file.refuse(key, False)
        file.refuse("scale_attn_weights", True)
        for key in ("sliding_window", "layer_types"):
            file.refuse(key)
        hidden_size, num_heads = file.integer("n_embd"), file.integer("n_head")
        if hidden_size % num_heads:
            raise file.error(
                f"n_embd {hidden_size} is no multiple of {num_heads} heads", "n_head must divide n_embd"
            )
        return ModelConfig(
            architecture="",
            vocab_size=file.integer("vocab_size"),
            hidden_size=hidden_size,
            num_layers=file.integer("n_layer"),
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=hidden_size // num_heads,
            intermediate_size=file.integer("n_inner", 4 * hidden_size),
            max_position_embeddings=file.integer("n_positions", 1024),
            norm_eps=file.number("layer_norm_epsilon", 1e-5),
            hidden_act=check_activation(file, "activation_function", "gelu_new"),
            rope=None,
            tie_word_embeddings=file.flag("tie_word_embeddings", True),
            attention_bias=True,
            attention_output_bias=True,
            mlp_bias=True,
        )

    @classmethod
    def ignores(cls, name: str) -> bool:
        return _MASK_BUFFER.search(name) is not None

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """As `DecoderModel.forward`. Raises `InputError` on the CPU for a position past the learned ones."""
        self._check_positions(positions)
        x: Tensor = self.embed_tokens(input_ids) + self.embed_positions(positions)
        for layer in self.layers:
            x = layer(x, attend)
        x = self.norm(x)
        return x

    def _check_positions(self, positions: Tensor) -> None:
        # On a GPU the look would cost a synchronisation a step; the lookup itself stops there with an assertion.
        limit = self.config.max_position_embeddings
        if positions.device.type == "cpu" and positions.numel() and int(positions.max()) >= limit:
            raise InputError(
                f"position {int(positions.max())}: the model has {limit} learned positions; "
                f"keep prompt and output within max_model_len {limit}"
            )

    def checkpoint_views(self) -> dict[str, Tensor]:
        views: dict[str, Tensor] = {
            self.embedding_name: self.embed_tokens.weight,
            "transformer.wpe.weight": self.embed_positions.weight,
            "transformer.ln_f.weight": self.norm.weight,
            "transformer.ln_f.bias": self.norm.bias,
        }
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, GPT2Layer)
            views |= {
                f"transformer.h.{index}.{name}": view for name, view in layer.checkpoint_views().items()
            }
        if not self.config.tie_word_embeddings:
            views["lm_head.weight"] = self.lm_head.weight
        return views
