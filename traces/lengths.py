"""Distributions of token counts for the generator; every draw is at least 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tinyllm.errors import InputError
from traces.modeltext import parse_model

Tokens = NDArray[np.int64]


class LengthModel(Protocol):
    """A distribution of token counts. A new one: a class here and a line in `LENGTH_MODELS`."""

    def sample(self, rng: np.random.Generator, count: int) -> Tokens:
        """`count` draws, int64 [count], each ≥ 1."""
        ...


@dataclass(frozen=True)
class Constant:
    """Always the same number of tokens."""

    tokens: int

    def __post_init__(self) -> None:
        _require(self.tokens >= 1, "constant", "tokens must be 1 or more")

    def sample(self, rng: np.random.Generator, count: int) -> Tokens:
        return np.full(count, self.tokens, dtype=np.int64)


@dataclass(frozen=True)
class LogNormal:
    """exp(N(log median, sigma²)), rounded, cut to [1, max]."""

    median: float
    sigma: float = 1.0
    max: int = 131_072

    def __post_init__(self) -> None:
        _require(1 <= self.median <= self.max, "lognormal", "median must lie between 1 and max")
        _require(0 <= self.sigma <= 10, "lognormal", "sigma must lie between 0 and 10")

    def sample(self, rng: np.random.Generator, count: int) -> Tokens:
        draws = np.rint(rng.lognormal(np.log(self.median), self.sigma, count))
        return np.clip(draws, 1, self.max).astype(np.int64)


@dataclass(frozen=True)
class Zipf:
    """P(x) ∝ (x + shift)^−exponent on 1 … max: Zipf's law, with a shift Mandelbrot's, cut at max."""

    exponent: float = 1.1
    shift: float = 0.0
    max: int = 1_023

    def __post_init__(self) -> None:
        _require(0 <= self.exponent <= 100, "zipf", "exponent must lie between 0 and 100")
        _require(0 <= self.shift <= 1e9, "zipf", "shift must lie between 0 and 1e9")
        _require(1 <= self.max <= 10_000_000, "zipf", "max must lie between 1 and 10,000,000")

    def probabilities(self) -> NDArray[np.float64]:
        """float64 [max]: that of 1 first."""
        tokens = np.arange(1, self.max + 1, dtype=np.float64)
        # Relative to the first weight, so that a large exponent and shift cannot underflow them all.
        weights = ((tokens + self.shift) / (1 + self.shift)) ** -self.exponent
        return np.asarray(weights / weights.sum(), dtype=np.float64)

    def sample(self, rng: np.random.Generator, count: int) -> Tokens:
        cumulative = np.cumsum(self.probabilities())
        index = np.searchsorted(cumulative, rng.random(count), side="right")
        return np.minimum(index + 1, self.max).astype(np.int64)


LENGTH_MODELS: Final[dict[str, Callable[..., LengthModel]]] = {
    "constant": Constant,
    "lognormal": LogNormal,
    "zipf": Zipf,
}


def parse_lengths(text: str) -> LengthModel:
    """`name:key=value,…` to a model, for instance `constant:tokens=512` or `lognormal:median=300,sigma=1.2`.

    Raises:
        InputError: unknown name or key, a value that is no number or out of range.
    """
    return parse_model("lengths", text, LENGTH_MODELS)


def _require(holds: bool, name: str, rule: str) -> None:
    if not holds:
        raise InputError(f"lengths {name}: {rule}")
