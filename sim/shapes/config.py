"""Reading a Hugging Face config.json. A new model family is a reader and a line in `_READERS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from sim.shapes.base import ModelShape
from tinyllm.errors import InputError

Config = Mapping[str, Any]


def shape_from_config(config: Config, source: str) -> ModelShape:
    """The shape that a parsed config.json describes; `source` is its path, named in errors.

    Raises:
        InputError: unsupported `model_type`, a missing or non-integer size, or sliding-window attention.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in _READERS:
        raise InputError(f"{source}: model_type {model_type!r} is not one of {', '.join(_READERS)}")
    if config.get("use_sliding_window"):
        raise InputError(f"{source}: use_sliding_window is set, which no cost model knows; set it to false")
    # A checkpoint's directory is what people call it by.
    name = str(config.get("_name_or_path") or Path(source).parent.name or source)
    try:
        return _READERS[model_type](config, name)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _llama(config: Config, name: str, *, qkv_bias: bool | None = None, qk_norm: bool = False) -> ModelShape:
    hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    attention_bias = bool(config.get("attention_bias", False))
    return ModelShape(
        name=name,
        num_layers=_size(config, "num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=_size(config, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=_size(config, "num_key_value_heads", heads),
        head_dim=_size(config, "head_dim", hidden // heads),
        vocab_size=_size(config, "vocab_size"),
        max_position_embeddings=_size(config, "max_position_embeddings"),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias if qkv_bias is None else qkv_bias,
        o_bias=attention_bias and qkv_bias is None,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=qk_norm,
    )


def _qwen2(config: Config, name: str) -> ModelShape:
    # Biases on q, k and v are part of the architecture; its config has no key for them.
    return _llama(config, name, qkv_bias=True)


def _qwen3(config: Config, name: str) -> ModelShape:
    return _llama(config, name, qk_norm=True)


def _gpt2(config: Config, name: str) -> ModelShape:
    hidden, heads = _size(config, "n_embd"), _size(config, "n_head")
    return ModelShape(
        name=name,
        num_layers=_size(config, "n_layer"),
        hidden_size=hidden,
        intermediate_size=_size(config, "n_inner", 4 * hidden),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        vocab_size=_size(config, "vocab_size"),
        max_position_embeddings=_size(config, "n_positions"),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", True)),
        gated_mlp=False,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        norm_bias=True,
        learned_positions=True,
    )


_READERS: Final[dict[str, Callable[[Config, str], ModelShape]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gpt2": _gpt2,
}


def _size(config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{key} is {value!r}; it must be a whole number over 0")
    return value
