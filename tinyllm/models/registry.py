"""Architecture names, as in `config.json`, and the classes that run them. A new family is one line here."""

from __future__ import annotations

from typing import Final

from tinyllm.errors import InputError
from tinyllm.models.base import DecoderModel
from tinyllm.models.config import ConfigFile
from tinyllm.models.gpt2 import GPT2LMHeadModel
from tinyllm.models.llama import LlamaForCausalLM
from tinyllm.models.qwen import Qwen2ForCausalLM, Qwen3ForCausalLM

ARCHITECTURES: Final[dict[str, type[DecoderModel]]] = {
    "GPT2LMHeadModel": GPT2LMHeadModel,
    "LlamaForCausalLM": LlamaForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
}


def model_class(architecture: str, file: ConfigFile | None = None) -> type[DecoderModel]:
    """The class of an architecture. Raises `InputError`, listing those supported, where there is none."""
    try:
        return ARCHITECTURES[architecture]
    except KeyError:
        where = f"{file.path}: " if file else ""
        supported = ", ".join(ARCHITECTURES)
        raise InputError(
            f"{where}architecture {architecture!r} is not supported; use one of {supported}"
        ) from None
