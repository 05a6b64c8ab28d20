"""Text to token ids and back, by the `tokenizer.json` of a checkpoint directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from tinyllm.errors import InputError


class Tokenizer:
    """The `tokenizers` package, checked against its model, with what incremental decoding needs to know.

    Attributes:
        byte_token_ids: tokens such as `<0xE4>`, of which a run is decoded as a whole (byte fallback of
            SentencePiece); empty for tokenizers that work on bytes throughout.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        backend.no_truncation()
        backend.no_padding()
        self._special_ids = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self.byte_token_ids = _byte_token_ids(backend)

    @classmethod
    def from_directory(cls, directory: str | Path, vocab_size: int) -> Tokenizer | None:
        """Read `tokenizer.json`; None where the directory has none.

        Raises:
            InputError: the file can't be read, or it has token ids that a model of `vocab_size` has not.
        """
        path = Path(directory) / "tokenizer.json"
        if not path.is_file():
            return None
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        # The package raises a bare Exception for whatever is wrong with a file.
        except Exception as error:
            raise InputError(
                f"{path}: cannot be read as a tokenizer ({error}); copy the file again"
            ) from None
        largest = max(backend.get_vocab(with_added_tokens=True).values(), default=0)
        if largest >= vocab_size:
            raise InputError(
                f"{path}: has token id {largest}, the model's vocabulary ends at {vocab_size - 1}; "
                "use the tokenizer of this checkpoint"
            )
        return cls(backend)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; with `add_special_tokens` also those that the file's post-processor adds (BOS)."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids without special tokens; broken UTF-8 becomes U+FFFD."""
        text: str = self._backend.decode(token_ids, skip_special_tokens=True)
        return text

    def is_silent(self, token_id: int) -> bool:
        """Whether `decode` passes over it: a special token, or an id that the model has and the file has not."""
        return token_id in self._special_ids or self._backend.id_to_token(token_id) is None

    def id_of(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it."""
        token_id: int | None = self._backend.token_to_id(token)
        return token_id


def _byte_token_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    if not _has_byte_fallback(json.loads(backend.to_str())["decoder"]):
        return frozenset()
    ids = (backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
    return frozenset(token_id for token_id in ids if token_id is not None)


def _has_byte_fallback(decoder: dict[str, Any] | None) -> bool:
    if decoder is None:
        return False
    return decoder["type"] == "ByteFallback" or any(map(_has_byte_fallback, decoder.get("decoders", ())))
