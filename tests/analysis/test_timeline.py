"""The waiting and running curves against the state that the naive engine was in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import timeline
from analysis.timeline import Curve
from tinyllm.engine.record.reader import read_run

JOBS = st.lists(
    st.fixed_dictionaries(
        {"arrival": st.integers(0, 12).map(float), "prompt": st.just(3), "output": st.integers(1, 6)},
        optional={"refused": st.booleans()},
    ),
    min_size=1,
    max_size=8,
)


def _level(curve, time):
    place = np.searchsorted(curve.times, time, side="right") - 1
    return curve.values[place] if place >= 0 else 0.0


@settings(max_examples=50, deadline=None)
@given(jobs=JOBS, seats=st.integers(1, 3), preempt_at=st.frozensets(st.integers(0, 10), max_size=4))
def test_the_curves_equal_the_engine_s_own_counts_in_every_step(serve, jobs, seats, preempt_at):
    run = read_run(serve(jobs, seats=seats, preempt_at=preempt_at)[0])
    running, waiting = timeline.running(run), timeline.waiting(run)
    for step in run.steps.to_dict("records"):
        # The engine counts while a step runs; whole-second arrivals come at its start.
        assert _level(running, step["start"]) == step["num_running"]
        assert _level(waiting, step["start"]) == step["num_waiting"]


@settings(max_examples=50, deadline=None)
@given(jobs=JOBS, preempt_at=st.frozensets(st.integers(0, 10), max_size=4))
def test_all_that_arrived_has_left_at_the_end(serve, jobs, preempt_at):
    run = read_run(serve(jobs, preempt_at=preempt_at)[0])
    for curve in (timeline.running(run), timeline.waiting(run)):
        assert (curve.values >= 0).all()
        assert len(curve.values) == 0 or curve.values[-1] == 0


def test_a_request_aborted_while_it_waits_leaves_the_queue(write):
    rows = [
        {"request_id": "r", "arrival": 1.0, "finished": 4.0, "finish_reason": "abort"},
        {
            "request_id": "s",
            "arrival": 2.0,
            "first_scheduled": 2.0,
            "finished": 6.0,
            "finish_reason": "abort",
        },
    ]
    events = [{"time": 3.0, "request_id": "s", "event": "preempted"}]
    run = read_run(write(requests=rows, events=events))
    waiting = timeline.waiting(run)
    assert (waiting.times.tolist(), waiting.values.tolist()) == ([1, 2, 3, 4, 6], [1, 1, 2, 1, 0])
    assert timeline.running(run).values.tolist() == [1, 0]


def test_means_are_exact_time_averages():
    curve = Curve(np.array([1.0, 2.0, 4.0]), np.array([10.0, 0.0, 6.0]))
    assert curve.means([0, 2, 3, 5]) == pytest.approx([5.0, 0.0, 3.0])
    assert curve.means([-3, -1]) == pytest.approx([0.0])
    assert curve.means([6, 8]) == pytest.approx([6.0])


@given(
    changes=st.lists(st.tuples(st.floats(0, 10), st.integers(-3, 3)), max_size=20),
    cuts=st.lists(st.floats(0.1, 9.9), max_size=5, unique=True),
)
def test_means_over_parts_add_up_to_the_mean_over_the_whole(changes, cuts):
    curve = Curve.from_changes([([time], change) for time, change in changes] or [([], 1)])
    edges = np.array([0.0, *sorted(cuts), 10.0])
    assert curve.means(edges) @ np.diff(edges) == pytest.approx(curve.means([0, 10])[0] * 10, abs=1e-6)
