"""Qwen2, Qwen2.5 and Qwen3 (dense): the LLaMA decoder with other flags.

Qwen2 has biases on q, k and v; Qwen3 has none by default and norms the heads of q and k. Both may limit the upper
layers to a sliding window. Defaults as in Transformers' `Qwen2Config` and `Qwen3Config`.
"""

from __future__ import annotations

from tinyllm.models.config import ConfigFile, ModelConfig
from tinyllm.models.llama import FULL, SLIDING, LlamaForCausalLM, llama_config


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Qwen2 and Qwen2.5."""

    @classmethod
    def parse_config(cls, file: ConfigFile) -> ModelConfig:
        window, layers = parse_windows(file)
        return llama_config(file, attention_bias=True, sliding_window=window, windowed_layers=layers)


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Qwen3, dense sizes."""

    @classmethod
    def parse_config(cls, file: ConfigFile) -> ModelConfig:
        window, layers = parse_windows(file)
        bias = file.flag("attention_bias", False)
        return llama_config(
            file,
            head_dim=file.integer("head_dim", 128),
            attention_bias=bias,
            attention_output_bias=bias,
            qk_norm=True,
            sliding_window=window,
            windowed_layers=layers,
        )


def parse_windows(file: ConfigFile) -> tuple[int | None, tuple[bool, ...]]:
    """The window in tokens and the layers under it: `layer_types`, else those from `max_window_layers` on.

    Raises:
        InputError: a layer type is unknown, their count differs from the layers', or a layer asks for a window
            while `use_sliding_window` is off.
    """
    num_layers = file.integer("num_hidden_layers")
    window = file.integer("sliding_window", 4096) if file.flag("use_sliding_window", False) else None
    layer_types = file.values.get("layer_types")
    if layer_types is None:
        first = file.integer("max_window_layers", 28) if file.values.get("max_window_layers") != 0 else 0
        layer_types = [SLIDING if window and layer >= first else FULL for layer in range(num_layers)]
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise file.error(f"layer_types must be a list of {num_layers} entries", "one for each layer")
    if unknown := [kind for kind in layer_types if kind not in (SLIDING, FULL)]:
        raise file.error(f"layer type {unknown[0]!r} is not supported", f"use {FULL} or {SLIDING}")
    layers = tuple(kind == SLIDING for kind in layer_types)
    if any(layers) and window is None:
        raise file.error("layer_types asks for a sliding window", "set use_sliding_window and sliding_window")
    return (window, layers) if any(layers) else (None, ())
