from __future__ import annotations

import math
from statistics import median, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from tinyllm.errors import InputError
from tinyllm.policy import make_predictor
from tinyllm.policy.predictor import biased, buckets, lognormal, perfect, rank_noise


def test_the_perfect_predictor_tells_the_truth() -> None:
    assert [perfect()(row, tokens) for row, tokens in ((0, 1), (1, 7), (2, 5_000))] == [1, 7, 5_000]


@given(row=st.integers(0, 10**9), tokens=st.integers(1, 10**6), seed=st.integers(0, 2**32))
def test_a_noisy_prediction_depends_on_seed_row_and_length_only(row: int, tokens: int, seed: int) -> None:
    first = lognormal(0.5, seed)
    for other_row in range(3):
        first(other_row, 100)
    assert first(row, tokens) == lognormal(0.5, seed)(row, tokens) >= 1


def test_rows_and_seeds_have_noise_of_their_own() -> None:
    predictions = {lognormal(0.5, seed)(row, 10**6) for seed in range(5) for row in range(20)}
    assert len(predictions) == 100


def test_known_draws_stay_what_they_are() -> None:
    # Equal on every machine and in every process: Python's generator seeded by a text hashes it with SHA-512.
    predict = lognormal(0.5, 7)
    assert [predict(row, 1_000) for row in range(4)] == [828, 1320, 743, 1651]


def test_noise_is_unbiased_in_the_median_and_as_wide_as_asked() -> None:
    predict = lognormal(0.5, 11)
    logs = [math.log(predict(row, 100_000) / 100_000) for row in range(4_000)]
    # Standard errors: 1.25 · 0.5/√4000 ≈ 0.010 of the median, 0.5/√8000 ≈ 0.006 of the deviation.
    assert median(logs) == pytest.approx(0, abs=0.03)
    assert stdev(logs) == pytest.approx(0.5, abs=0.02)


def test_without_noise_the_prediction_is_the_truth_and_never_under_one_token() -> None:
    assert lognormal(0.0, 3)(5, 321) == 321
    assert min(lognormal(5.0, 3)(row, 1) for row in range(200)) == 1


LENGTHS = [1 + 7919 * n % 4_001 for n in range(2_000)]
"""All different, in no order."""


@given(width=st.integers(1, 500), tokens=st.integers(1, 10**6), row=st.integers(0, 10**6))
def test_a_bucket_is_predicted_by_its_largest_length_and_missed_by_one_bucket(width, tokens, row) -> None:
    sure = buckets(width, 1, seed=3)(row, tokens)
    assert tokens <= sure < tokens + width
    assert sure % width == 0
    missed = buckets(width, 0, seed=3)(row, tokens)
    assert abs(missed - sure) == width
    assert missed >= 1


def test_buckets_are_right_as_often_as_asked_and_miss_to_both_sides() -> None:
    predict = buckets(10, 0.8, seed=5)
    predictions = [predict(row, 95) for row in range(4_000)]
    # Standard error of a share of 0.8: 0.4/√4000 ≈ 0.006.
    assert predictions.count(100) / 4_000 == pytest.approx(0.8, abs=0.02)
    assert predictions.count(90) / 4_000 == pytest.approx(0.1, abs=0.02)
    assert predictions.count(110) / 4_000 == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("tau", [-0.4, 0.0, 0.3, 0.8])
def test_rank_noise_has_the_kendall_tau_that_was_asked_for(tau: float) -> None:
    predict = rank_noise(tau, 11, LENGTHS)
    predictions = [predict(row, length) for row, length in enumerate(LENGTHS)]
    # Standard error of tau at 0 with 2,000 pairs: about 0.015.
    assert kendalltau(LENGTHS, predictions).statistic == pytest.approx(tau, abs=0.05)
    assert set(predictions) <= set(LENGTHS)
    assert median(predictions) == pytest.approx(median(LENGTHS), rel=0.1)


def test_rank_noise_without_noise_is_the_truth_and_upside_down_at_minus_one() -> None:
    lengths = [10, 20, 30, 40, 50]
    assert [rank_noise(1, 0, lengths)(row, n) for row, n in enumerate(lengths)] == lengths
    assert [rank_noise(-1, 0, lengths)(row, n) for row, n in enumerate(lengths)] == lengths[::-1]


def test_rank_noise_depends_on_the_workload_as_a_set_and_on_the_row() -> None:
    one, other = rank_noise(0.5, 2, LENGTHS), rank_noise(0.5, 2, LENGTHS[::-1])
    assert [one(row, 70) for row in range(50)] == [other(row, 70) for row in range(50)]
    assert len({one(row, 70) for row in range(50)}) > 30


def test_a_bias_draws_lengths_to_the_median_and_keeps_their_order() -> None:
    lengths = [25, 100, 400]
    assert [biased(0, lengths)(0, n) for n in lengths] == lengths
    assert [biased(0.5, lengths)(0, n) for n in lengths] == [50, 100, 200]
    assert [biased(1, lengths)(0, n) for n in lengths] == [100, 100, 100]


def test_predictors_by_name() -> None:
    assert make_predictor("none", 0) is None
    assert make_predictor("perfect", 0)(3, 44) == 44
    assert make_predictor("lognormal", 9)(3, 1_000) == lognormal(0.5, 9)(3, 1_000)
    assert make_predictor("lognormal:1.5", 9)(3, 1_000) == lognormal(1.5, 9)(3, 1_000)
    assert make_predictor("buckets", 9)(3, 1_000) == 1_024
    assert make_predictor("buckets:10:0", 9)(3, 95) == buckets(10, 0, 9)(3, 95)
    assert make_predictor("tau:0.3", 9, LENGTHS)(3, 70) == rank_noise(0.3, 9, LENGTHS)(3, 70)
    assert make_predictor("biased:1", 9, [5, 70, 900])(3, 5) == 70


@pytest.mark.parametrize(
    "spec",
    [
        *("", "exact", "perfect:1", "none:0"),
        *("lognormal:0.5:1", "buckets:0", "buckets:1.5", "buckets:64:1.1", "buckets:64:1:1", "buckets:nan"),
        *("tau:1.1", "tau:nan", "biased:-0.1", "biased:x", "biased:inf"),
        *("lognormal:x", "lognormal:-1", "lognormal:nan", "lognormal:inf", "lognormal:1000"),
    ],
)
def test_a_wrong_predictor_is_one_line(spec: str) -> None:
    with pytest.raises(InputError, match="--predictor") as error:
        make_predictor(spec, 0)
    assert "\n" not in str(error.value)
