"""Predictors of the output length. They see the true length, which policies never do, and a seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from tinyllm.errors import InputError

Predictor = Callable[[int, int], int]
"""(source row, true output tokens) → predicted output tokens, at least 1."""


def perfect() -> Predictor:
    """The true length."""

    def predict(source_row: int, output_tokens: int) -> int:
        return max(1, output_tokens)

    return predict


def lognormal(sigma: float, seed: int) -> Predictor:
    """The true length times exp(N(0, sigma²)), rounded; unbiased in the median.

    The noise of a request depends on the seed and its source row only, so every policy, window and order
    of the same trace sees the same predictions.

    Raises:
        InputError: sigma is not in [0, 5]; beyond, predictions leave the range of 64-bit integers.
    """
    if not 0 <= sigma <= 5:
        raise InputError(f"--predictor lognormal:{sigma:g}: give a sigma from 0 to 5")

    def predict(source_row: int, output_tokens: int) -> int:
        noise = Random(f"{seed}/{source_row}").gauss(0.0, sigma)
        return max(1, round(output_tokens * math.exp(noise)))

    return predict


def make_predictor(spec: str, seed: int) -> Predictor | None:
    """The predictor that `none`, `perfect` or `lognormal:SIGMA` names; None for `none`.

    Raises:
        InputError: an unknown name or a wrong parameter.
    """
    name, _, parameter = spec.partition(":")
    if name == "none" and not parameter:
        return None
    if name == "perfect" and not parameter:
        return perfect()
    if name == "lognormal":
        try:
            sigma = float(parameter or "0.5")
        except ValueError:
            raise InputError(f"--predictor {spec}: {parameter!r} is no number; e.g. lognormal:0.5") from None
        return lognormal(sigma, seed)
    raise InputError(f"--predictor {spec}: unknown; choose none, perfect or lognormal:SIGMA")
