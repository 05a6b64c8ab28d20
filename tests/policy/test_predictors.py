from __future__ import annotations

import math
from statistics import median, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.errors import InputError
from tinyllm.policy import make_predictor
from tinyllm.policy.predictor import lognormal, perfect


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


def test_predictors_by_name() -> None:
    assert make_predictor("none", 0) is None
    assert make_predictor("perfect", 0)(3, 44) == 44
    assert make_predictor("lognormal", 9)(3, 1_000) == lognormal(0.5, 9)(3, 1_000)
    assert make_predictor("lognormal:1.5", 9)(3, 1_000) == lognormal(1.5, 9)(3, 1_000)


@pytest.mark.parametrize(
    "spec",
    [
        *("", "exact", "perfect:1", "none:0"),
        *("lognormal:x", "lognormal:-1", "lognormal:nan", "lognormal:inf", "lognormal:1000"),
    ],
)
def test_a_wrong_predictor_is_one_line(spec: str) -> None:
    with pytest.raises(InputError, match="--predictor") as error:
        make_predictor(spec, 0)
    assert "\n" not in str(error.value)
