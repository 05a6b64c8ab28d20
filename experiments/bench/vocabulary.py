"""Where prompts come from: the token ids of a checkpoint that are no special ones, and a text in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.corpus import corpus_text
from sim.shapes import ModelShape
from tinyllm.engine.tokenizer import Tokenizer
from tinyllm.errors import InputError
from traces.prompts import PromptMaker
from traces.schema import TraceRow

_SPECIAL_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id")

Prompts = tuple[tuple[int, ...], ...]


class Vocabulary:
    """The token ids of a checkpoint directory.

    Args:
        seed: chooses the pieces of text.

    Attributes:
        max_model_len: the model's context, tokens.

    Raises:
        InputError: the directory has no or a wrong `tokenizer.json`.
    """

    def __init__(self, directory: Path, shape: ModelShape, seed: int) -> None:
        self.max_model_len = shape.max_position_embeddings
        tokenizer = Tokenizer.from_directory(directory, shape.vocab_size)
        if tokenizer is None:
            raise InputError(
                f"--model {directory}: has no tokenizer.json, which tells special tokens from others"
            )
        self._plain = _plain_ids(tokenizer, shape.vocab_size, _special_ids(directory))
        special = set(range(shape.vocab_size)) - set(self._plain.tolist())
        self._text = [token for token in tokenizer.encode(corpus_text()) if token not in special]
        self._seed = seed

    def random(self, rng: np.random.Generator, rows: Sequence[TraceRow]) -> Prompts:
        """For each row a prompt of its length, each token drawn evenly."""
        return tuple(tuple(rng.choice(self._plain, row.prompt_tokens).tolist()) for row in rows)

    def text(self, rng: np.random.Generator, rows: Sequence[TraceRow]) -> Prompts:
        """For each row a piece of text of its length, drawn by the seed and the row's number."""
        maker = PromptMaker(self._text, int(rng.integers(2**31)))
        return tuple(tuple(maker.token_ids(row)) for row in rows)

    def matched(self, rows: Sequence[TraceRow], prefix_block_size: int | None) -> Prompts:
        """For each row of a trace a piece of text of its length; equal prefix ids are equal tokens."""
        maker = PromptMaker(self._text, self._seed, prefix_block_size)
        return tuple(tuple(maker.token_ids(row)) for row in rows)


def _plain_ids(tokenizer: Tokenizer, vocab_size: int, special: set[int]) -> NDArray[np.int64]:
    plain = [n for n in range(vocab_size) if n not in special and not tokenizer.is_silent(n)]
    return np.array(plain, dtype=np.int64)


def _special_ids(directory: Path) -> set[int]:
    """Ids that the model's configuration gives a meaning, whatever the tokenizer says of them."""
    special: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        path = directory / name
        values = _read(path) if path.is_file() else {}
        for key in _SPECIAL_KEYS:
            value = values.get(key)
            special |= set(value if isinstance(value, list) else [] if value is None else [value])
    return special


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error}); copy the file again") from None
    return values if isinstance(values, dict) else {}
