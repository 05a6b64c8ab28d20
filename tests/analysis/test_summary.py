"""One line a run: counts, rates, shares, the stability flag and the warnings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.metrics import ServiceLevels
from analysis.summary import summarize
from tinyllm.engine.record.reader import read_run
from tinyllm.errors import InputError


def job(arrival=0.0, output=2, **more):
    return {"arrival": float(arrival), "prompt": 8, "output": output} | more


def test_two_requests_worked_by_hand(serve):
    run = read_run(serve([job(0, 2), job(0, 4), job(1, 1)], seats=2)[0])
    # r0 has its tokens at 1, 2; r1 at 1, 2, 3, 4; r2 arrives at 1, waits, runs in [2, 3].
    summary = summarize(run)
    expected = {
        "offered": 3,
        "completed": 3,
        "refused": 0,
        "duration": 4.0,
        "request_throughput": 3 / 4,
        "output_throughput": 7 / 4,
        "ttft_mean": (1 + 1 + 2) / 3,
        "ttft_p50": 1.0,
        "tpot_mean": 1.0,
        "itl_p50": 1.0,
        "e2e_mean": (2 + 4 + 2) / 3,
        "e2e_p50": 2.0,
        "queue_mean": 1 / 3,
        "normalized_latency_mean": (1 + 1 + 2) / 3,
        "longest_stall_max": 1.0,
        "preemptions_per_request": 0.0,
        "prefix_hit_share": 0.25,
        "peak_blocks_used": 6,
        "num_gpu_blocks": 100,
        "mean_running": (2 + 2 + 2 + 1) / 4,
        "mean_waiting": 1 / 4,
        "lag_share": 0.0,
        "unstable": False,
    }
    assert {name: summary[name] for name in expected} == pytest.approx(expected)


def test_every_offered_request_is_counted_once_by_how_it_ended(write):
    reasons = ["stop", "length", "length", "rejected", "error", "abort", "unfinished"]
    rows = [
        {"request_id": f"r{i}", "arrival": float(i), "finish_reason": reason}
        for i, reason in enumerate(reasons)
    ]
    summary = summarize(read_run(write(requests=rows)))
    names = ("completed", "refused", "failed", "aborted", "unfinished")
    assert [summary[name] for name in names] == [3, 1, 1, 1, 1]
    assert summary["offered"] == sum(summary[name] for name in names)


def test_a_run_in_which_everything_was_refused_has_counts_and_no_latency(serve):
    summary = summarize(read_run(serve([job(i, refused=True) for i in range(3)])[0]))
    assert (summary["offered"], summary["completed"], summary["refused"]) == (3, 0, 3)
    for name in ("ttft_mean", "tpot_p99", "itl_p50", "e2e_mean", "prefix_hit_share", "peak_blocks_used"):
        assert summary[name] is None
    assert any("3 of 3 requests were refused" in text for text in summary["warnings"])


def test_a_killed_run_is_measured_up_to_where_its_log_goes(write):
    rows = [
        {"request_id": "r0", "arrival": 0.0, "first_scheduled": 0.0, "first_token": 1.0, "finished": 2.0,
         "submitted": 0.0, "output_tokens": 2, "prompt_tokens": 4, "finish_reason": "length"},
    ]  # fmt: skip
    workload = [
        {"request_id": f"r{i}", "arrival": 100.0 * i, "prompt_tokens": 4, "warmup": False} for i in range(3)
    ]
    events = [{"time": 0.0, "request_id": "r0", "event": "queued", "step": 0}]
    summary = summarize(read_run(write(requests=rows, workload=workload, events=events, status="running")))
    assert (summary["offered"], summary["completed"], summary["unfinished"]) == (3, 1, 2)
    assert (summary["duration"], summary["request_throughput"]) == (2.0, 0.5)
    assert any("the run is running, its log ends early" in text for text in summary["warnings"])


@settings(max_examples=25, deadline=None)
@given(
    jobs=st.lists(st.builds(job, st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=9),
    seats=st.integers(1, 3),
)
def test_littles_law_holds_between_the_curves_and_the_latencies(serve, jobs, seats):
    summary = summarize(read_run(serve(jobs, seats=seats)[0]))
    in_system = summary["mean_running"] + summary["mean_waiting"]
    assert in_system == pytest.approx(summary["request_throughput"] * summary["e2e_mean"])


def test_the_window_drops_requests_by_arrival_and_keeps_throughput_to_the_window(serve):
    run = read_run(serve([job(i, 1) for i in range(10)], seats=1)[0])
    summary = summarize(run, warmup=2.5, cooldown=2.5)
    assert summary["offered"] == 4
    assert summary["duration"] == 4.0
    assert summary["request_throughput"] == pytest.approx(1.0)


def test_recomputed_share_is_of_all_computed_tokens(write):
    rows = [{"request_id": "r", "arrival": 0.0, "recomputed_tokens": 25, "preemptions": 2,
             "first_scheduled": 0.0, "finish_reason": "stop"}]  # fmt: skip
    spans = [{"request_id": "r", "replica": 0, "phase": "prefill", "first_step": 0, "last_step": 0,
              "tokens": 100, "sampled": 1}]  # fmt: skip
    summary = summarize(read_run(write(requests=rows, spans=spans)))
    assert summary["recomputed_share"] == 0.25
    assert summary["preemptions_per_request"] == 2.0


def test_a_lagging_replay_is_flagged(write):
    rows = [
        {"request_id": "r", "arrival": 0.0, "submitted": 1.0, "first_token": 4.0, "finish_reason": "stop"}
    ]
    summary = summarize(read_run(write(requests=rows)))
    assert summary["lag_share"] == 0.25
    assert any("lagged: 25%" in text for text in summary["warnings"])


def test_a_p99_of_few_requests_is_shown_with_a_warning(serve):
    summary = summarize(read_run(serve([job()])[0]))
    assert any("p99 rests on 1 completed requests" in text for text in summary["warnings"])


def _single_server(rng, load, num_requests):
    """Request rows of an M/D/1 queue with a service time of one second."""
    arrivals = np.cumsum(rng.exponential(1 / load, num_requests))
    rows, free = [], 0.0
    for i, arrival in enumerate(arrivals.tolist()):
        start = max(arrival, free)
        free = start + 1.0
        rows.append(
            {
                "request_id": f"r{i}",
                "arrival": arrival,
                "first_scheduled": start,
                "finished": free,
                "finish_reason": "stop",
            }
        )
    return rows


@pytest.mark.parametrize("load", [0.3, 0.7, 0.85])
@pytest.mark.parametrize("seed", range(4))
def test_a_queue_that_keeps_up_is_stable(write, load, seed):
    rows = _single_server(np.random.default_rng(seed), load, 2_000)
    assert summarize(read_run(write(requests=rows)))["unstable"] is False


@pytest.mark.parametrize("load", [1.1, 1.3, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_an_overloaded_queue_is_unstable_also_when_it_drains_at_the_end(write, load, seed):
    rows = _single_server(np.random.default_rng(seed), load, 2_000)
    assert summarize(read_run(write(requests=rows)))["unstable"] is True


def test_one_burst_at_the_start_is_no_instability(write):
    rows = [
        {"request_id": f"r{i}", "arrival": 0.01 * i if i < 100 else float(i), "first_scheduled": float(i),
         "finished": i + 1.0, "finish_reason": "stop"}
        for i in range(300)
    ]  # fmt: skip
    assert summarize(read_run(write(requests=rows)))["unstable"] is False


def test_a_window_without_requests_is_one_line(serve):
    with pytest.raises(InputError, match="leave no request of 1: shorten them"):
        summarize(read_run(serve([job()])[0]), warmup=10.0)


def test_under_service_levels_what_did_not_complete_scores_0(serve):
    jobs = [{"arrival": 0.0, "prompt": 4, "output": 3} for _ in range(3)]
    run = read_run(serve([*jobs, {"arrival": 0.0, "prompt": 1, "output": 1, "refused": True}], seats=2)[0])
    # Two are served at once, a token a second; the third is begun after 3 s and has its tokens at 4, 5 and 6 s.
    summary = summarize(run, levels=ServiceLevels(ttft=1.0, tpot=1.0))
    assert summary["attainment"] == 2 / 4
    assert summary["goodput"] == summary["goodput_per_gpu"] == pytest.approx(2 / 6)
    assert summary["fluidity_index_mean"] == pytest.approx((1 + 1 + 2 / (2 + 4) + 0) / 4)
    # Read until 7 s: 3 tokens, begun at 4, 5 and 6 s, and in the ideal stream at 1, 2 and 3 s.
    assert summary["qoe_mean"] == pytest.approx((1 + 1 + (2.5 + 1.5 + 0.5) / (5.5 + 4.5 + 3.5) + 0) / 4)
    assert summarize(run, levels=ServiceLevels(e2e=3.0))["attainment"] == 2 / 4
    assert summarize(run, levels=ServiceLevels(e2e=3.0))["qoe_mean"] is None
    assert summarize(run)["attainment"] is None
