"""Predictors of the output length. They see the true length, which policies never do, and a seed."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from random import Random
from statistics import NormalDist
from typing import Protocol

from tinyllm.errors import InputError


class Predictor(Protocol):
    """Guesses a request's output length.

    The noise of a request depends on the seed and its source row only, so every policy and order of the same
    trace sees the same predictions. `tau` and `biased` also look at the lengths of the whole workload.
    """

    def __call__(self, source_row: int, output_tokens: int, draw: int = 0) -> int:
        """A guess, at least 1, of `output_tokens`; another `draw` has noise of its own."""


def _noise(seed: int, source_row: int, draw: int) -> Random:
    return Random(f"{seed}/{source_row}/{draw}" if draw else f"{seed}/{source_row}")


def perfect() -> Predictor:
    """The true length."""

    def predict(source_row: int, output_tokens: int, draw: int = 0) -> int:
        return max(1, output_tokens)

    return predict


def lognormal(sigma: float, seed: int) -> Predictor:
    """The true length times exp(N(0, sigma²)), rounded; unbiased in the median.

    Raises:
        InputError: sigma is not in [0, 5]; beyond, predictions leave the range of 64-bit integers.
    """
    if not 0 <= sigma <= 5:
        raise InputError(f"--predictor lognormal:{sigma:g}: give a sigma from 0 to 5")

    def predict(source_row: int, output_tokens: int, draw: int = 0) -> int:
        noise = _noise(seed, source_row, draw).gauss(0.0, sigma)
        return max(1, round(output_tokens * math.exp(noise)))

    return predict


def buckets(width: float, accuracy: float, seed: int) -> Predictor:
    """The largest length of the bucket of `width` tokens that the true length falls in, as from a classifier
    (S3, Jin et al. 2023); with probability 1 − `accuracy`, that of a bucket beside it.

    Raises:
        InputError: no whole width of at least 1, or an accuracy outside [0, 1].
    """
    if not (1 <= width <= 2**31 and width == int(width) and 0 <= accuracy <= 1):
        raise InputError(
            f"--predictor buckets:{width:g}:{accuracy:g}: give a whole width of at least 1, and an accuracy "
            "from 0 to 1"
        )
    size = int(width)

    def predict(source_row: int, output_tokens: int, draw: int = 0) -> int:
        rng = _noise(seed, source_row, draw)
        bucket = (max(1, output_tokens) - 1) // size
        if rng.random() >= accuracy:
            # Below the first bucket there is none: its errors all go up.
            bucket += -1 if bucket and rng.random() < 0.5 else 1
        return (bucket + 1) * size

    return predict


def rank_noise(tau: float, seed: int, lengths: Sequence[int]) -> Predictor:
    """Lengths in a noisy order, whose rank correlation with the true one is `tau` (Kendall's) in expectation.

    The true length's normal score z becomes ρ·z + √(1 − ρ²)·ε with ρ = sin(π·tau/2), which is what makes two
    normal variables have that tau (Kruskal, JASA 53, 1958); the prediction is the length of that score in
    `lengths`. So predictions are distributed as the lengths are. With many equal lengths tau is only near.

    Raises:
        InputError: tau is not in [−1, 1].
    """
    if not -1 <= tau <= 1:
        raise InputError(f"--predictor tau:{tau:g}: give Kendall's tau from -1 to 1")
    ranked = sorted(max(1, length) for length in lengths)
    normal, rho = NormalDist(), math.sin(math.pi * tau / 2)
    spread = math.sqrt(max(0.0, 1 - rho * rho))

    def predict(source_row: int, output_tokens: int, draw: int = 0) -> int:
        if not ranked:
            return max(1, output_tokens)
        middle = (bisect_left(ranked, output_tokens) + bisect_right(ranked, output_tokens)) / 2
        share = min(max(middle, 0.5), len(ranked) - 0.5) / len(ranked)
        noise = _noise(seed, source_row, draw).gauss(0.0, 1.0)
        score = rho * normal.inv_cdf(share) + spread * noise
        return ranked[min(int(normal.cdf(score) * len(ranked)), len(ranked) - 1)]

    return predict


def biased(bias: float, lengths: Sequence[int]) -> Predictor:
    """Drawn to the median m of `lengths`: m · (length / m)^(1 − bias), rounded. Short outputs are overestimated
    and long ones underestimated, as by a regression that knows little; 0 is the truth, 1 predicts m for all.

    Raises:
        InputError: bias is not in [0, 1].
    """
    if not 0 <= bias <= 1:
        raise InputError(f"--predictor biased:{bias:g}: give a bias from 0 to 1")
    middle = max(1, sorted(lengths)[len(lengths) // 2]) if lengths else 1

    def predict(source_row: int, output_tokens: int, draw: int = 0) -> int:
        return max(1, round(math.pow(middle, bias) * math.pow(max(1, output_tokens), 1 - bias)))

    return predict


_Builder = Callable[[list[float], int, Sequence[int]], Predictor | None]

PREDICTORS: dict[str, tuple[str, tuple[float, ...], _Builder]] = {
    "none": ("none", (), lambda p, seed, lengths: None),
    "perfect": ("perfect", (), lambda p, seed, lengths: perfect()),
    "lognormal": ("lognormal:SIGMA", (0.5,), lambda p, seed, lengths: lognormal(p[0], seed)),
    "buckets": ("buckets:WIDTH:ACCURACY", (64, 1), lambda p, seed, lengths: buckets(p[0], p[1], seed)),
    "tau": ("tau:KENDALL", (0.5,), lambda p, seed, lengths: rank_noise(p[0], seed, lengths)),
    "biased": ("biased:BIAS", (0.5,), lambda p, seed, lengths: biased(p[0], lengths)),
}
"""By name: how it is written, the defaults of its parameters, and its maker."""


def make_predictor(spec: str, seed: int, lengths: Sequence[int] = ()) -> Predictor | None:
    """The predictor that `NAME` or `NAME:PARAMETER…` names (see `PREDICTORS`); None for `none`.

    Args:
        lengths: the true output tokens of all requests of the workload, in any order.

    Raises:
        InputError: an unknown name or a wrong parameter.
    """
    name, *given = spec.split(":")
    if name not in PREDICTORS:
        raise InputError(
            f"--predictor {spec}: unknown; choose {', '.join(how for how, *_ in PREDICTORS.values())}"
        )
    how, defaults, make = PREDICTORS[name]
    if len(given) > len(defaults):
        raise InputError(f"--predictor {spec}: too many parameters; write {how}")
    parameters = list(defaults)
    for i, text in enumerate(given):
        try:
            parameters[i] = float(text) if text else defaults[i]
        except ValueError:
            raise InputError(f"--predictor {spec}: {text!r} is no number; write {how}") from None
    return make(parameters, seed, lengths)
