"""The exponential equals the library's, in a softmax's row and in the gate of an MLP, compiled as kernels are."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from tinyllm.models.exponential import LOG2_E, ROW, exponentiate, gate, largest
from tinyllm.models.panels import FASTMATH


@njit(fastmath=FASTMATH)
def _exponentiate(row: np.ndarray, scale: float, top: float) -> float:
    return exponentiate(row.ctypes.data, len(row), np.float32(scale), np.float32(top))


@njit(fastmath=FASTMATH)
def _largest(row: np.ndarray) -> float:
    return largest(row.ctypes.data, len(row))


@njit(fastmath=FASTMATH)
def _gate(gates: np.ndarray, ups: np.ndarray, out: np.ndarray) -> None:
    for first in range(0, len(gates), ROW):
        gate(gates[first:].ctypes.data, ups[first:].ctypes.data, out[first:].ctypes.data)


def test_the_exponential_is_exact_to_two_units_of_the_last_digit() -> None:
    row = np.linspace(-100, 126, 12_500 * ROW).astype(np.float32)
    expected = np.exp2(row.astype(np.float64))
    _exponentiate(row, 1.0, 0.0)
    assert np.abs(row / expected - 1).max() < 2 * 2.0**-23


def test_the_gate_is_silu_times_the_other_half() -> None:
    gates = np.linspace(-80, 80, 12_500 * ROW).astype(np.float32)
    ups, out = np.linspace(-3, 7, len(gates)).astype(np.float32), np.empty_like(gates)
    _gate(gates, ups, out)
    expected = gates.astype(np.float64) / (1 + np.exp(-gates.astype(np.float64))) * ups
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_the_gate_beyond_the_range_of_the_exponential() -> None:
    gates = np.array([-math.inf, -1e30, -200, 0, 200, 1e30, math.nan, *[1] * (ROW - 7)], np.float32)
    out = np.empty_like(gates)
    _gate(gates, np.ones_like(gates), out)
    assert np.abs(out[1:4]).max() < 1e-5
    assert out[4] == 200 and out[5] == np.float32(1e30) and np.isnan(out[6])


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 5 * ROW), st.floats(0.01, 10), st.integers(0, 99))
def test_a_row_becomes_the_weights_of_its_softmax(rows: int, seen: int, scale: float, seed: int) -> None:
    scores = np.random.default_rng(seed).standard_normal(rows * ROW).astype(np.float32)
    scores[seen:] = -np.inf
    weights = scores.copy()
    total = _exponentiate(weights, scale * LOG2_E, _largest(scores))
    expected = np.exp((scores.astype(np.float64) - scores.max()) * np.float32(scale))
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-5)
    assert (weights[seen:] == 0).all()


def test_a_score_that_is_no_number_makes_the_sum_none() -> None:
    scores = np.zeros(2 * ROW, np.float32)
    scores[ROW + 3] = math.nan
    assert math.isnan(_exponentiate(scores, 1.0, 0.0))


@settings(deadline=None)
@given(st.floats(1, 1e37), st.floats(0.01, 10), st.integers(0, 99))
def test_scores_of_any_size_have_weights_that_add_up(size: float, scale: float, seed: int) -> None:
    scores = (np.random.default_rng(seed).standard_normal(3 * ROW) * size).astype(np.float32)
    weights = scores.copy()
    total = _exponentiate(weights, scale, _largest(scores))
    assert weights.max() == 1 and weights.min() >= 0 and total >= 1
