"""Published models by name, from the config.json of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sim.shapes.base import ModelShape
from sim.shapes.config import shape_from_config
from tinyllm.errors import InputError

SHAPES: Final[dict[str, ModelShape]] = {
    shape.name: shape
    for shape in (
        ModelShape(
            name="smollm2-135m",
            num_layers=30,
            hidden_size=576,
            intermediate_size=1536,
            num_heads=9,
            num_kv_heads=3,
            head_dim=64,
            vocab_size=49152,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
        ),
        ModelShape(
            name="qwen2.5-0.5b",
            num_layers=24,
            hidden_size=896,
            intermediate_size=4864,
            num_heads=14,
            num_kv_heads=2,
            head_dim=64,
            vocab_size=151936,
            max_position_embeddings=32768,
            tie_word_embeddings=True,
            qkv_bias=True,
        ),
        ModelShape(
            name="qwen2.5-1.5b",
            num_layers=28,
            hidden_size=1536,
            intermediate_size=8960,
            num_heads=12,
            num_kv_heads=2,
            head_dim=128,
            vocab_size=151936,
            max_position_embeddings=32768,
            tie_word_embeddings=True,
            qkv_bias=True,
        ),
        ModelShape(
            name="qwen2.5-7b",
            num_layers=28,
            hidden_size=3584,
            intermediate_size=18944,
            num_heads=28,
            num_kv_heads=4,
            head_dim=128,
            vocab_size=152064,
            max_position_embeddings=32768,
            qkv_bias=True,
        ),
        ModelShape(
            name="llama-3.1-8b",
            num_layers=32,
            hidden_size=4096,
            intermediate_size=14336,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            vocab_size=128256,
            max_position_embeddings=131072,
        ),
        ModelShape(
            name="llama-3.1-70b",
            num_layers=80,
            hidden_size=8192,
            intermediate_size=28672,
            num_heads=64,
            num_kv_heads=8,
            head_dim=128,
            vocab_size=128256,
            max_position_embeddings=131072,
        ),
    )
}
"""Qwen2.5 stands for the Instruct models, whose context is 32,768 tokens."""


def shape_by_name(name_or_path: str | Path) -> ModelShape:
    """A shape by name, else from a config.json or the directory that has one.

    Raises:
        InputError: no such name or path, or a config that `shape_from_config` refuses.
    """
    known = SHAPES.get(str(name_or_path).lower())
    if known is not None:
        return known
    path = Path(name_or_path)
    if path.is_dir():
        path = path / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"unknown model shape {str(name_or_path)!r} and no such config.json; "
            f"give a path or one of {', '.join(SHAPES)}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(config, Mapping):
        raise InputError(f"{path}: not a JSON object; give a Hugging Face config.json")
    return shape_from_config(config, str(path))
