"""The exponential equals the library's, number by number and row by row."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from tinyllm.models.exponential import ROW, exponential, exponentiate


@njit
def _exponentiate(row: np.ndarray, scale: float) -> float:
    return exponentiate(row.ctypes.data, len(row), np.float32(scale))


@njit
def _exponentials(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(x)):
        out[i] = exponential(x[i])


def test_the_exponential_is_exact_to_two_units_of_the_last_digit() -> None:
    x = np.linspace(-87, 88, 200_001).astype(np.float32)
    out = np.empty_like(x)
    _exponentials(x, out)
    expected = np.exp(x.astype(np.float64))
    assert np.abs(out / expected - 1).max() < 2 * 2.0**-23


def test_the_exponential_beyond_its_range() -> None:
    x = np.array([-math.inf, -1e30, -88, 0, 89, math.inf, math.nan], np.float32)
    out = np.empty_like(x)
    _exponentials(x, out)
    assert out[:4].tolist() == [0, 0, 0, 1]
    assert out[4] == out[5] > 1e38
    assert np.isnan(out[6])


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 5 * ROW), st.floats(0.01, 10), st.integers(0, 99))
def test_a_row_becomes_the_weights_of_its_softmax(rows: int, seen: int, scale: float, seed: int) -> None:
    scores = np.random.default_rng(seed).standard_normal(rows * ROW).astype(np.float32)
    scores[seen:] = -np.inf
    weights = scores.copy()
    total = _exponentiate(weights, scale)
    expected = np.exp((scores.astype(np.float64) - scores.max()) * np.float32(scale))
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-5)
    assert (weights[seen:] == 0).all()


def test_a_score_that_is_no_number_makes_the_sum_none() -> None:
    scores = np.zeros(2 * ROW, np.float32)
    scores[ROW + 3] = math.nan
    assert math.isnan(_exponentiate(scores, 1.0))
