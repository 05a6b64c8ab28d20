"""The interface of an engine that ours is compared with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class GreedyOutput(NamedTuple):
    """What an engine generates from one prompt, taking the likeliest token each time.

    Attributes:
        token_ids: the output, an EOS that ended it included.
        margins: for each of them, by how much its logit exceeds the second largest.
    """

    token_ids: list[int]
    margins: list[float]


class Backend(ABC):
    """An engine with a model loaded.

    Args:
        model: a local Hugging Face directory.
        device: `cpu` or `cuda`.
        dtype: `float32` or `bfloat16`.
    """

    @abstractmethod
    def __init__(self, model: Path, *, device: str, dtype: str) -> None: ...

    @abstractmethod
    def generate(self, prompt: Sequence[int], max_tokens: int, eos_token_ids: Sequence[int]) -> GreedyOutput:
        """Continue one prompt greedily to EOS, or to `max_tokens`."""
