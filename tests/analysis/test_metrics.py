"""The metrics of a run against those computed from the time of every token, without the log."""

from __future__ import annotations

from statistics import mean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.metrics import attainment, inter_token_latencies, request_metrics, window
from analysis.tokens import token_times
from tinyllm.engine.record.reader import read_run
from tinyllm.errors import InputError

JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "arrival": st.integers(0, 40).map(lambda n: n / 4),
            "prompt": st.integers(1, 9),
            "output": st.integers(1, 6),
        },
        optional={"refused": st.booleans()},
    ),
    min_size=1,
    max_size=8,
)
PREEMPT_AT = st.frozensets(st.integers(0, 12), max_size=4)


@settings(max_examples=40, deadline=None)
@given(jobs=JOBS, seats=st.integers(1, 3), preempt_at=PREEMPT_AT)
def test_token_times_come_back_from_spans_and_steps(serve, jobs, seats, preempt_at):
    path, truth = serve(jobs, seats=seats, preempt_at=preempt_at)
    times = token_times(read_run(path))
    for i, job in enumerate(truth):
        assert times.time[times.request == i].tolist() == job.tokens


@settings(max_examples=40, deadline=None)
@given(jobs=JOBS, seats=st.integers(1, 3), preempt_at=PREEMPT_AT)
def test_request_metrics_equal_those_of_the_token_times(serve, jobs, seats, preempt_at):
    path, truth = serve(jobs, seats=seats, preempt_at=preempt_at)
    frame = request_metrics(read_run(path))
    assert len(frame) == len(truth)
    for job, row in zip(truth, frame.to_dict("records"), strict=True):
        expected = _by_hand(job)
        got = {name: None if row[name] is None or row[name] != row[name] else row[name] for name in expected}
        assert got == pytest.approx(expected)


def _by_hand(job):
    names = ("ttft", "queue_time", "tpot", "e2e", "normalized_latency", "longest_stall")
    if job.refused:
        return dict.fromkeys(names)
    e2e = job.tokens[-1] - job.arrival
    gaps = [b - a for a, b in zip(job.tokens, job.tokens[1:], strict=False)]
    values = (
        job.tokens[0] - job.arrival,
        job.scheduled - job.arrival,
        mean(gaps) if gaps else None,
        e2e,
        e2e / len(job.tokens),
        max(gaps, default=None),
    )
    return dict(zip(names, values, strict=True))


@settings(max_examples=40, deadline=None)
@given(jobs=JOBS, seats=st.integers(1, 3), preempt_at=PREEMPT_AT)
def test_inter_token_latencies_are_pooled_over_all_requests(serve, jobs, seats, preempt_at):
    path, truth = serve(jobs, seats=seats, preempt_at=preempt_at)
    expected = [b - a for job in truth for a, b in zip(job.tokens, job.tokens[1:], strict=False)]
    assert inter_token_latencies(read_run(path)).gap.tolist() == pytest.approx(expected)


def test_a_chunked_prompt_has_its_one_token_at_its_last_step(write):
    spans = [
        {
            "request_id": "r",
            "replica": 0,
            "phase": "prefill",
            "first_step": 0,
            "last_step": 2,
            "tokens": 99,
            "sampled": 1,
        },
        {
            "request_id": "s",
            "replica": 0,
            "phase": "prefill",
            "first_step": 1,
            "last_step": 2,
            "tokens": 50,
            "sampled": 0,
        },
    ]
    steps = [{"step": i, "replica": 0, "start": i, "end": i + 0.5, "sampled_tokens": 0} for i in range(3)]
    rows = [{"request_id": name, "arrival": 0.0, "finish_reason": "unfinished"} for name in "rs"]
    times = token_times(read_run(write(requests=rows, steps=steps, spans=spans)))
    assert (times.request.tolist(), times.time.tolist()) == ([0], [2.5])


def test_steps_of_two_replicas_are_told_apart(write):
    steps = [
        {"step": step, "replica": replica, "start": 0.0, "end": 10.0 * replica + step, "sampled_tokens": 1}
        for step in range(2)
        for replica in (1, 0)
    ]
    spans = [
        {
            "request_id": f"r{n}",
            "replica": n,
            "phase": "decode",
            "first_step": 0,
            "last_step": 1,
            "tokens": 2,
            "sampled": 2,
        }
        for n in (0, 1)
    ]
    rows = [{"request_id": f"r{n}", "arrival": 0.0, "finish_reason": "unfinished"} for n in (0, 1)]
    times = token_times(read_run(write(requests=rows, steps=steps, spans=spans)))
    assert times.time.tolist() == [0.0, 1.0, 10.0, 11.0]


def test_spans_beyond_a_cut_step_log_lose_only_the_tokens_that_are_not_there(write):
    steps = [{"step": i, "replica": 0, "start": i, "end": i + 1, "sampled_tokens": 1} for i in range(3)]
    spans = [
        {
            "request_id": "r",
            "replica": 0,
            "phase": "decode",
            "first_step": 1,
            "last_step": 5,
            "tokens": 5,
            "sampled": 5,
        },
        {
            "request_id": "s",
            "replica": 0,
            "phase": "prefill",
            "first_step": 2,
            "last_step": 4,
            "tokens": 5,
            "sampled": 1,
        },
    ]
    rows = [{"request_id": name, "arrival": 0.0, "finish_reason": "unfinished"} for name in "rs"]
    times = token_times(read_run(write(requests=rows, steps=steps, spans=spans, status="running")))
    assert (times.request.tolist(), times.time.tolist()) == ([0, 0], [2.0, 3.0])


def test_latency_counts_from_the_intended_arrival_not_from_the_late_submission(write):
    # Case T2: 8 requests at 10/s, half a second of service each, one at a time.
    rows = [
        {
            "request_id": f"r{i}",
            "arrival": i * 0.1,
            "submitted": i * 0.5,
            "first_scheduled": i * 0.5,
            "first_token": i * 0.5 + 0.5,
            "finished": i * 0.5 + 0.5,
            "output_tokens": 1,
            "finish_reason": "stop",
        }
        for i in range(8)
    ]
    frame = request_metrics(read_run(write(requests=rows)))
    assert frame["e2e"].tolist() == pytest.approx([0.5 + 0.4 * i for i in range(8)])
    assert frame["ttft"].iloc[-1] == pytest.approx(3.3)
    assert frame["lag"].iloc[-1] == pytest.approx(2.8)


def test_a_request_of_one_token_has_no_tpot_and_null_is_not_nan(serve):
    path, _ = serve([{"arrival": 0.0, "prompt": 4, "output": 1}, {"arrival": 0.0, "prompt": 4, "output": 3}])
    tpot = request_metrics(read_run(path))["tpot"]
    assert tpot.isna().tolist() == [True, False]
    assert tpot.array.__arrow_array__().null_count == 1


def test_an_aborted_request_has_a_ttft_but_no_end_to_end_latency(write):
    row = {"request_id": "r", "arrival": 1.0, "first_scheduled": 1.0, "first_token": 2.0, "finished": 5.0}
    frame = request_metrics(read_run(write(requests=[row | {"output_tokens": 3, "finish_reason": "abort"}])))
    assert frame["ttft"].tolist() == [1.0]
    assert frame[["tpot", "e2e", "normalized_latency"]].isna().all(axis=None)


def test_attainment_counts_offered_requests_so_refused_ones_miss(serve):
    jobs = [{"arrival": 0.0, "prompt": 4, "output": 2} for _ in range(4)]
    path, _ = serve([*jobs, {"arrival": 0.0, "prompt": 4, "output": 2, "refused": True}], seats=2)
    # Two are served in [0, 2] s, two in [2, 4] s, one is refused.
    assert attainment(read_run(path), ttft=1.0) == (5, 2, 0.4, 0.5, 0.5)
    assert attainment(read_run(path), ttft=3.0, e2e=4.0) == (5, 4, 0.8, 1.0, 1.0)


def test_a_request_of_one_token_cannot_miss_a_tpot_objective(serve):
    path, _ = serve([{"arrival": 0.0, "prompt": 4, "output": n} for n in (1, 3)])
    assert attainment(read_run(path), tpot=0.5).met == 1
    assert attainment(read_run(path), tpot=1.0).met == 2


@settings(max_examples=30, deadline=None)
@given(jobs=JOBS, limit=st.floats(0.5, 20), stricter=st.floats(0.1, 1))
def test_a_stricter_objective_is_never_met_more_often(serve, jobs, limit, stricter):
    run = read_run(serve(jobs)[0])
    assert attainment(run, e2e=limit * stricter).met <= attainment(run, e2e=limit).met


@pytest.mark.parametrize("objectives", [{}, {"ttft": 0.0}, {"e2e": -1.0}, {"tpot": float("nan")}])
def test_an_objective_that_makes_no_sense_is_refused(serve, objectives):
    run = read_run(serve([{"arrival": 0.0, "prompt": 1, "output": 1}])[0])
    with pytest.raises(InputError, match="objective"):
        attainment(run, **objectives)


def test_warm_up_and_cool_down_are_cut_by_arrival_and_warm_up_rows_never_count(serve):
    jobs = [{"arrival": float(i), "prompt": 1, "output": 1, "warmup": i < 2} for i in range(10)]
    run = read_run(serve(jobs, seats=1)[0])
    assert np.flatnonzero(window(run).member).tolist() == list(range(2, 10))
    cut = window(run, warmup=3.0, cooldown=2.0)
    assert (cut.start, cut.end) == (5.0, 7.0)
    assert np.flatnonzero(cut.member).tolist() == [5, 6, 7]


@pytest.mark.parametrize(("warmup", "cooldown"), [(-1.0, 0.0), (0.0, -1.0), (99.0, 0.0), (float("nan"), 0.0)])
def test_a_cut_that_leaves_nothing_is_refused(serve, warmup, cooldown):
    run = read_run(serve([{"arrival": float(i), "prompt": 1, "output": 1} for i in range(3)])[0])
    with pytest.raises(InputError):
        window(run, warmup, cooldown)


@pytest.mark.parametrize(
    ("cost_model", "gpus"), [({"kind": "roofline", "tp": 4}, 4), ({"kind": "linear"}, 1), (None, 1)]
)
def test_goodput_per_gpu_divides_by_the_tensor_parallel_degree(write, cost_model, gpus):
    requests = [
        {
            "request_id": f"r{n}",
            "arrival": 0.0,
            "first_token": 1.0 + n,
            "finished": 8.0,
            "output_tokens": 3,
            "finish_reason": "length",
        }
        for n in range(4)
    ]
    result = attainment(read_run(write(requests=requests, cost_model=cost_model)), ttft=2.0)
    assert result == (4, 2, 0.5, 2 / 8, 2 / 8 / gpus)
