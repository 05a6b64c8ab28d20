"""How the tokens of one request are chosen, and when it stops. Names and meanings are vLLM's."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinyllm.errors import InputError

GREEDY_TEMPERATURE = 1e-5
"""Below it a temperature means greedy: the division would overflow, and the limit is the argmax anyway."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stopping of one request.

    Attributes:
        max_tokens: the most output tokens, ≥ 1.
        min_tokens: before so many output tokens neither EOS nor a stop token id can be sampled.
        temperature: divides the logits; 0 (or below `GREEDY_TEMPERATURE`) takes the likeliest token.
        top_k: sample among the k likeliest tokens; 0 (or vLLM's −1) is off.
        top_p: sample among the fewest likeliest tokens whose probabilities reach p; 1 is off.
        min_p: drop tokens less likely than min_p times the likeliest; 0 is off.
        repetition_penalty: divides positive and multiplies negative logits of tokens seen in prompt or output.
        presence_penalty: subtracted from the logits of tokens seen in the output.
        frequency_penalty: subtracted as often as the token was seen in the output.
        seed: makes the request repeatable in whatever batch it runs; None draws one.
        stop: strings that end the output; they are not part of it.
        stop_token_ids: token ids that end the output, beside the model's EOS ids.
        ignore_eos: go on after EOS (stop ids and strings still end it).
        logprobs: report the log-probability of each chosen token and of so many likeliest ones; None is off.

    Raises:
        InputError: a value is out of range; the message names the field.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        # A list, and a lone stop string, are what callers naturally write.
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        self._check_lengths()
        self._check_filters()
        self._check_penalties()
        self._check_stops()

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        return bool(self.repetition_penalty != 1.0 or self.presence_penalty or self.frequency_penalty)

    def _check_lengths(self) -> None:
        _check(self.max_tokens >= 1, "max_tokens", self.max_tokens, "give at least 1")
        _check(
            0 <= self.min_tokens <= self.max_tokens,
            "min_tokens",
            self.min_tokens,
            f"give 0 to max_tokens ({self.max_tokens})",
        )

    def _check_filters(self) -> None:
        _check(
            math.isfinite(self.temperature) and self.temperature >= 0,
            "temperature",
            self.temperature,
            "give 0 (greedy) or more",
        )
        _check(self.top_k >= -1, "top_k", self.top_k, "give 1 or more, or 0 for off")
        _check(0 < self.top_p <= 1, "top_p", self.top_p, "give a share above 0 and at most 1 (off)")
        _check(0 <= self.min_p <= 1, "min_p", self.min_p, "give a share from 0 (off) to 1")

    def _check_penalties(self) -> None:
        _check(
            math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0,
            "repetition_penalty",
            self.repetition_penalty,
            "give a number above 0 (1 is off)",
        )
        for field in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, field)
            _check(-2 <= value <= 2, field, value, "give a number from -2 to 2 (0 is off)")

    def _check_stops(self) -> None:
        seed_fits = self.seed is None or -(2**63) <= self.seed < 2**64
        _check(seed_fits, "seed", self.seed, "give an integer of at most 64 bits")
        _check("" not in self.stop, "stop", self.stop, "an empty string stops everywhere: remove it")
        _check(
            all(token_id >= 0 for token_id in self.stop_token_ids),
            "stop_token_ids",
            self.stop_token_ids,
            "token ids are not negative",
        )
        _check(
            self.logprobs is None or self.logprobs >= 0, "logprobs", self.logprobs, "give 0 or more, or None"
        )


def _check(holds: bool, field: str, value: object, mend: str) -> None:
    if not holds:
        raise InputError(f"sampling parameter {field} = {value!r} is out of range: {mend}")
