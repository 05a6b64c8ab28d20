"""What a checkpoint directory says about its model: `config.json` and `generation_config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tinyllm.errors import InputError
from tinyllm.models.rope import RopeConfig


@dataclass(frozen=True)
class ConfigFile:
    """A JSON object of settings whose readers check the type and, when it is wrong, name the file and the key.

    A key with the value null counts as absent, as in Transformers.
    """

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """Read the file. Raises `InputError` where it is missing, not JSON, or not an object."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(
                f"{path}: no such file; give a Hugging Face model directory with a config.json"
            ) from None
        except (OSError, ValueError) as fault:
            raise InputError(f"{path}: cannot be read as JSON ({fault}); copy the file again") from None
        if not isinstance(values, dict):
            raise InputError(f"{path}: holds no JSON object; copy the file again")
        return cls(path, values)

    def error(self, fault: str, mend: str) -> InputError:
        return InputError(f"{self.path}: {fault}; {mend}")

    def section(self, key: str) -> ConfigFile:
        """The object under `key`, empty where there is none."""
        values = self._typed(key, dict, {}, "an object")
        return ConfigFile(self.path, values, f"{self.prefix}{key}.")

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer; without a default it is required."""
        value: int = self._typed(key, int, default, "a positive integer")
        if value < 1 and value != default:
            raise self.error(f"{self.prefix}{key} is {value}", "it must be a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number; without a default it is required."""
        value = float(self._typed(key, (int, float), default, "a positive number"))
        if not 0 < value < float("inf"):
            raise self.error(f"{self.prefix}{key} is {value}", "it must be a positive number")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value: bool = self._typed(key, bool, default, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value: str = self._typed(key, str, default, "a string")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id, a list of them, or none."""
        value = self.values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
            raise self.error(f"{self.prefix}{key} is {value!r}", "it must be a token id or a list of them")
        return tuple(ids)

    def refuse(self, key: str, *harmless: object) -> None:
        """Raise where a setting that is not implemented has any other value than null or the harmless ones."""
        value = self.values.get(key)
        if value is not None and value not in harmless:
            shown = json.dumps(value)
            shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
            raise self.error(f"{self.prefix}{key} = {shown} is not supported", "use a checkpoint without it")

    def _typed(self, key: str, kind: type | tuple[type, ...], default: Any, wanted: str) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise self.error(f"{self.prefix}{key} is missing", "copy the file again or add it")
            return default
        # bool is an int in Python, but `"vocab_size": true` is a mistake.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(f"{self.prefix}{key} is {value!r}", f"it must be {wanted}")
        return value


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and flags of a decoder, under one set of names for all families.

    Attributes:
        architecture: the class name in `architectures`, a key of `registry.ARCHITECTURES`.
        head_dim: channels per head; the query width `num_heads * head_dim` need not be `hidden_size`.
        max_position_embeddings: the longest context in tokens.
        norm_eps: what RMS norm or layer norm adds under the root.
        rope: rotary settings; None for learned positions.
        attention_bias: biases in the q, k and v projections; `attention_output_bias` in the output projection.
        qk_norm: an RMS norm over each head of q and k, before the rotation.
        sliding_window: how many tokens, itself included, a token of a windowed layer sees; None without any.
        windowed_layers: for each layer, whether the window applies; empty without a window.
        eos_token_ids: any of them ends a sequence; `generation_config.json` first, else `config.json`.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    norm_eps: float
    hidden_act: str
    rope: RopeConfig | None
    tie_word_embeddings: bool
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    windowed_layers: tuple[bool, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    @classmethod
    def from_directory(cls, directory: str | Path) -> ModelConfig:
        """Read a Hugging Face model directory.

        Raises:
            InputError: there is no directory or `config.json`, the architecture is unknown, or a setting is
                missing, of a wrong type, contradictory, or not supported.
        """
        # The families import this module.
        from tinyllm.models.registry import model_class

        directory = Path(directory)
        if not directory.is_dir():
            raise InputError(f"{directory}: no such directory; `tinyllm get-model` brings a checkpoint")
        file = ConfigFile.read(directory / "config.json")
        architectures = file.values.get("architectures")
        if not isinstance(architectures, list) or not architectures:
            raise file.error("architectures is missing", 'name the class, e.g. ["LlamaForCausalLM"]')
        file.refuse("quantization_config")
        family = model_class(str(architectures[0]), file)
        config = replace(family.parse_config(file), architecture=str(architectures[0]))
        _check_heads(config, file)
        return replace(config, **_special_tokens(directory, file))

    def sliding_window_of(self, layer: int) -> int | None:
        """The window of a layer in tokens, the token itself included; None where it sees its whole past."""
        return self.sliding_window if self.windowed_layers and self.windowed_layers[layer] else None


def _check_heads(config: ModelConfig, file: ConfigFile) -> None:
    if config.num_heads % config.num_kv_heads:
        raise file.error(
            f"{config.num_heads} attention heads cannot share {config.num_kv_heads} key-value heads",
            "num_key_value_heads must divide num_attention_heads",
        )
    if config.rope is not None and config.head_dim % 2:
        raise file.error(f"head_dim is {config.head_dim}", "rotary embedding needs an even one")


def _special_tokens(directory: Path, config: ConfigFile) -> dict[str, Any]:
    path = directory / "generation_config.json"
    files = [ConfigFile.read(path), config] if path.is_file() else [config]
    eos = next((ids for file in files if (ids := file.token_ids("eos_token_id"))), ())
    bos = next((ids for file in files if (ids := file.token_ids("bos_token_id"))), ())
    return {"eos_token_ids": eos, "bos_token_id": bos[0] if bos else None}
