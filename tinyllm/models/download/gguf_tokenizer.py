"""The byte-level BPE tokenizer in a GGUF file → tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tinyllm.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTROL: Final = 3
"""The GGUF token type of special tokens."""


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer. Raises `InputError` where the GGUF holds another kind of it, or another splitting rule."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    kind, rule = metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"]
    if kind != "gpt2" or rule != "smollm":
        raise InputError(
            f"GGUF tokenizer {kind!r} / {rule!r} cannot be converted; only 'gpt2' / 'smollm' can"
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = _smollm_splitter()
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"]
    special = [token for token, token_kind in zip(tokens, kinds, strict=True) if token_kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _smollm_splitter() -> PreTokenizer:
    from tokenizers import pre_tokenizers

    # Each digit is a word of its own; the rest splits as in GPT-2.
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    splitter: PreTokenizer = pre_tokenizers.Sequence([digits, byte_level])
    return splitter


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """`tokenizer_config.json`, with the chat template."""
    tokens = metadata["tokenizer.ggml.tokens"]
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    keys = {name: f"tokenizer.ggml.{key}_token_id" for name, key in names.items()}
    return {
        # The class that takes tokenizer.json as it is: Transformers 5 would rebuild a named one by its own rules.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "add_bos_token": metadata.get("tokenizer.ggml.add_bos_token", False),
        **{name: tokens[metadata[key]] for name, key in keys.items() if key in metadata},
        "chat_template": metadata["tokenizer.chat_template"],
    }
