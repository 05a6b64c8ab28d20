from __future__ import annotations

import math

import numpy as np
import pytest

from tinyllm.errors import InputError
from traces.generate import PRESETS, generate
from traces.info import summarize
from traces.lengths import Constant, LogNormal, Zipf, parse_lengths


def test_equal_seeds_give_equal_rows_and_other_seeds_others() -> None:
    first, second = (list(generate(requests=200, seed=7).rows) for _ in range(2))
    assert first == second
    assert first != list(generate(requests=200, seed=8).rows)


def test_a_change_of_lengths_leaves_the_arrivals_and_tenants_as_they_were() -> None:
    plain = list(generate(requests=200, seed=7).rows)
    constant = list(generate(requests=200, seed=7, prompt=Constant(5), failure_share=0.5).rows)
    assert [(row.arrival_ns, row.tenant) for row in plain] == [
        (row.arrival_ns, row.tenant) for row in constant
    ]
    assert {row.prompt_tokens for row in constant} == {5}


def test_burstgpt_like_matches_the_published_facts_of_its_file_1() -> None:
    """Head of file 1: prompt mean 374, median 74, p95 1,697; output mean 122, median 14, p95 510."""
    summary = summarize(generate("burstgpt-like", requests=100_000, seed=0))
    prompt, output = summary.prompt, summary.output
    assert prompt.mean == pytest.approx(374, rel=0.05)
    assert prompt.median == pytest.approx(74, abs=2)
    assert prompt.p95 == pytest.approx(1697, rel=0.05)
    assert output.mean == pytest.approx(122, rel=0.05)
    assert output.median == pytest.approx(14, abs=1)
    assert output.p95 == pytest.approx(510, rel=0.05)
    assert summary.tenants["GPT-4"] / summary.rows == pytest.approx(0.1532, abs=0.005)
    assert summary.cv == pytest.approx(math.sqrt(2), rel=0.03)
    assert summary.rate == pytest.approx(1.0, rel=0.03)


def test_gpt_4_rows_of_burstgpt_like_have_the_published_means() -> None:
    rows = [row for row in generate("burstgpt-like", requests=100_000, seed=0).rows if row.tenant == "GPT-4"]
    assert np.mean([row.prompt_tokens for row in rows]) == pytest.approx(763, rel=0.05)
    assert np.mean([row.output_tokens for row in rows]) == pytest.approx(348, rel=0.05)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_rate_and_burstiness_are_what_was_asked_for(cv: float) -> None:
    summary = summarize(generate("poisson", requests=50_000, seed=3, rate=20, cv=cv))
    assert summary.rate == pytest.approx(20, rel=0.05)
    assert summary.cv == pytest.approx(cv, rel=0.05)


def test_a_cv_of_zero_gives_even_gaps() -> None:
    rows = list(generate(requests=4, seed=0, rate=4, cv=0).rows)
    assert [row.arrival_ns for row in rows] == [0, 250_000_000, 500_000_000, 750_000_000]


def test_failures_have_no_output_and_come_at_the_asked_share() -> None:
    rows = list(generate(requests=20_000, seed=0, failure_share=0.0178).rows)
    share = sum(row.output_tokens == 0 for row in rows) / len(rows)
    assert share == pytest.approx(0.0178, abs=0.004)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_gives_ordered_rows_with_tokens(preset: str) -> None:
    trace = generate(preset, requests=500, seed=1)
    rows = list(trace.rows)
    assert len(rows) == trace.provenance.rows_in == trace.provenance.rows_out == 500
    assert all(row.prompt_tokens >= 1 and row.output_tokens >= 1 for row in rows)
    assert [row.arrival_ns for row in rows] == sorted(row.arrival_ns for row in rows)


def test_zipf_follows_its_law() -> None:
    model = Zipf(1.5, 2.0, 6)
    draws = model.sample(np.random.default_rng(0), 60_000)
    weights = np.array([(token + 2.0) ** -1.5 for token in range(1, 7)])
    assert np.bincount(draws, minlength=7)[1:] / 60_000 == pytest.approx(weights / weights.sum(), abs=0.01)


def test_lognormal_has_its_median_and_its_bound() -> None:
    draws = LogNormal(100, 1.0, 300).sample(np.random.default_rng(0), 20_000)
    assert np.median(draws) == pytest.approx(100, rel=0.05)
    assert draws.max() == 300


def test_length_models_are_written_as_a_name_and_numbers() -> None:
    assert parse_lengths("constant:tokens=512") == Constant(512)
    assert parse_lengths("zipf:exponent=1.2,max=99") == Zipf(1.2, 0.0, 99)
    assert parse_lengths("lognormal:median=300") == LogNormal(300)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "weibull",
        "constant",
        "constant:tokens=0",
        "constant:words=3",
        "constant:tokens=1.5",
        "zipf:max",
        "zipf:exponent=nan",
        "lognormal:median=inf",
        "lognormal:median=3,sigma=-1",
    ],
)
def test_a_wrong_length_model_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="lengths"):
        parse_lengths(text)


@pytest.mark.parametrize(
    "options",
    [
        {"requests": 0},
        {"seed": -1},
        {"rate": 0.0},
        {"rate": math.nan},
        {"rate": 1e-12},
        {"cv": -1.0},
        {"cv": math.nan},
        {"failure_share": 1.0},
        {"preset": "gauss"},
    ],
)
def test_a_number_out_of_range_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match="--"):
        generate(**{"requests": 10, "seed": 0, **options})  # type: ignore[arg-type]
