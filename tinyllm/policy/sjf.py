"""Shortest job first, by predicted output lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tinyllm.errors import InputError
from tinyllm.policy.base import FOREVER, SchedulingPolicy
from tinyllm.policy.request import Request


class SJF(SchedulingPolicy):
    """The request whose whole work is least goes first, and what runs is let run.

    Work is counted in tokens: those of the prompt, plus `decode_weight` times the predicted output tokens.
    Progress does not enter. Without a prediction the declared `max_tokens` stands in for it.

    Args:
        decode_weight: work of an output token, in prompt tokens.
    """

    name: ClassVar[str] = "sjf"
    stable_waiting = True

    def __init__(self, decode_weight: int = 1) -> None:
        if decode_weight < 1:
            raise InputError(f"{self.name}: decode_weight {decode_weight}: give a whole number of at least 1")
        self.decode_weight = decode_weight

    def key(self, view: Request, now: int) -> tuple[int]:
        predicted = view.predicted_output_tokens
        output = view.max_tokens if predicted is None else predicted
        return (view.num_prompt_tokens + self.decode_weight * output,)

    def decode_horizon(self, running: Sequence[Request], waiting: int, now: int) -> int:
        return FOREVER
