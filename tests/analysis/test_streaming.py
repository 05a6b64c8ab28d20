"""Fluidity index and QoE against a reader who takes token by token, and against areas summed in small slices."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.streaming import fluidity_index, quality_of_experience, streaming_metrics
from tinyllm.engine.record.reader import read_run
from tinyllm.errors import InputError

EIGHTHS = st.integers(1, 40).map(lambda n: n / 8)
STREAMS = st.lists(
    st.lists(st.integers(0, 30), max_size=6).map(lambda gaps: np.cumsum(gaps) / 8), min_size=1, max_size=5
)
"""Delays in eighths of a second, which floats hold exactly."""


def _flat(streams):
    return np.concatenate(streams), np.array([len(stream) for stream in streams])


def _fluidity_by_hand(stream, ttft, tpot):
    deadline, met, missed = ttft, 0, 0
    for time in stream:
        if time <= deadline:
            met += 1
            deadline += tpot
            continue
        while deadline < time:
            missed += 1
            deadline += tpot
        # Deadlines start anew from the late token; one that falls on it was not missed.
        missed += deadline == time
        deadline = time + tpot
    return met / (met + missed) if met + missed else math.nan


@settings(deadline=None)
@given(STREAMS, EIGHTHS, EIGHTHS)
def test_the_fluidity_index_counts_deadlines_one_by_one(streams, ttft, tpot):
    expected = [_fluidity_by_hand(stream, ttft, tpot) for stream in streams]
    assert fluidity_index(*_flat(streams), ttft, tpot).tolist() == pytest.approx(expected, nan_ok=True)


def _qoe_in_slices(stream, ttft, tpot, slices=20_000):
    if not len(stream):
        return math.nan
    begin, free = [], -math.inf
    for time in stream:
        begin.append(max(time, free))
        free = begin[-1] + tpot
    t = (np.arange(slices) + 0.5) / slices * free
    read = sum(np.clip((t - moment) / tpot, 0, 1) for moment in begin)
    ideal = np.clip((t - ttft) / tpot, 0, len(stream))
    return min(read.sum() / ideal.sum(), 1.0) if ideal.sum() else 1.0


@settings(deadline=None, max_examples=60)
@given(STREAMS, EIGHTHS, EIGHTHS)
def test_qoe_is_the_ratio_of_two_areas(streams, ttft, tpot):
    expected = [_qoe_in_slices(stream, ttft, tpot) for stream in streams]
    got = quality_of_experience(*_flat(streams), ttft, tpot).tolist()
    assert got == pytest.approx(expected, abs=2e-3, rel=2e-3, nan_ok=True)


def test_an_ideal_stream_scores_one_in_both_also_with_rounded_times():
    stream = 0.3 + 0.1 * np.arange(50)
    assert fluidity_index(stream, np.array([50]), 0.3, 0.1).tolist() == [1.0]
    assert quality_of_experience(stream, np.array([50]), 0.3, 0.1).tolist() == pytest.approx([1.0])


def test_a_stall_costs_less_when_slack_was_saved_up():
    early, late = np.array([1.0, 4.5, 4.6, 4.7]), np.array([1.0, 1.1, 1.2, 4.7])
    first, then = (fluidity_index(stream, np.array([4]), 1.0, 1.0)[0] for stream in (early, late))
    assert (first, then) == (pytest.approx(1 - 3 / 6), pytest.approx(1 - 1 / 4))


def test_everything_read_before_anything_is_due_is_perfect():
    assert quality_of_experience(np.array([0.1, 0.2]), np.array([2]), 9.0, 0.5).tolist() == [1.0]


def test_a_run_is_scored_from_its_log_and_counts_from_the_arrival(serve):
    jobs = [{"arrival": 0.5 * i, "prompt": 4, "output": 3} for i in range(3)] + [
        {"arrival": 0.0, "prompt": 4, "output": 1, "refused": True}
    ]
    path, truth = serve(jobs, seats=1)
    frame = streaming_metrics(read_run(path), ttft=2.0, tpot=1.0)
    for job, row in zip(truth, frame.itertuples(), strict=True):
        stream = np.array(job.tokens) - job.arrival
        assert row.fluidity_index == pytest.approx(_fluidity_by_hand(stream, 2.0, 1.0), nan_ok=True)
        assert row.qoe == pytest.approx(_qoe_in_slices(stream, 2.0, 1.0), abs=1e-3, nan_ok=True)
    assert frame["fluidity_index"].isna().tolist() == [False, False, False, True]


@pytest.mark.parametrize(("ttft", "tpot"), [(0, 1), (1, -1), (float("nan"), 1)])
def test_an_ideal_stream_has_times_above_0(serve, ttft, tpot):
    run = read_run(serve([{"arrival": 0.0, "prompt": 1, "output": 1}])[0])
    with pytest.raises(InputError, match="must be above 0"):
        streaming_metrics(run, ttft, tpot)
