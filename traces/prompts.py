"""Prompts of exactly a trace's length, as token ids: rows that share prefix ids share tokens, others do not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

from tinyllm.errors import InputError


class PromptRow(Protocol):
    """What a prompt is made from; trace rows and arrival records both have it."""

    @property
    def source_row(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def prefix_ids(self) -> tuple[int, ...] | None: ...


class PromptMaker:
    """Cuts prompts from a text that was turned into token ids once.

    A piece of text belongs to an *identity*: a prefix id, or a row that has none. It begins with the identity
    written in a few tokens, so two identities differ in their first block, and goes on with the corpus from an
    offset that is a hash of seed and identity. The same seed, corpus and row give the same tokens.

    Args:
        corpus: token ids of a text, at least 64, repeated where it is too short.
        seed: another seed cuts other pieces.
        prefix_block_size: tokens that one prefix id stands for.

    Raises:
        InputError: the corpus is too short or too uniform.
    """

    def __init__(self, corpus: Sequence[int], seed: int = 0, prefix_block_size: int | None = None) -> None:
        self._corpus = list(corpus)
        self._digits = sorted(set(corpus))
        if len(self._corpus) < 64 or len(self._digits) < 16:
            raise InputError(
                f"the prompt corpus has {len(self._corpus)} tokens, {len(self._digits)} of them distinct; "
                "give a text of at least a page"
            )
        self._seed = seed
        self._prefix_block_size = prefix_block_size

    def token_ids(self, row: PromptRow) -> list[int]:
        """The prompt of a row: exactly `prompt_tokens` token ids."""
        if row.prefix_ids is None or self._prefix_block_size is None:
            return self._piece("row", row.source_row, row.prompt_tokens)
        tokens: list[int] = []
        for prefix_id in row.prefix_ids:
            tokens += self._piece("prefix", prefix_id, self._prefix_block_size)
        return tokens[: row.prompt_tokens]

    def _piece(self, kind: str, identity: int, length: int) -> list[int]:
        digest = hashlib.sha256(f"{self._seed}/{kind}/{identity}".encode()).digest()
        start = int.from_bytes(digest[:8], "big") % len(self._corpus)
        piece = self._written(kind, identity)[:length]
        while len(piece) < length:
            piece += self._corpus[start : start + length - len(piece)]
            start = 0
        return piece

    def _written(self, kind: str, identity: int) -> list[int]:
        """The identity in the base of the corpus's distinct tokens: short, and different for every identity."""
        base = len(self._digits)
        rest = 2 * identity + (kind == "prefix")
        written: list[int] = []
        while rest or not written:
            rest, digit = divmod(rest, base)
            written.append(self._digits[digit])
        return written
