"""The rules beside the policy through `replay`: in the log, re-simulated, refused where they can't hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.options import ReplayOptions
from experiments.predictions import Refresh
from experiments.replay import replay
from experiments.resim import resimulate
from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.engine.record.reader import Run, read_run
from tinyllm.engine.record.workload import ArrivalRecord, request_from
from tinyllm.errors import InputError
from tinyllm.policy import ONE_TOKEN, ScheduledBatch, make_predictor
from traces.export import write_trace
from traces.schema import Provenance, Trace, TraceRow

MakeOptions = Callable[..., ReplayOptions]

TIGHT = {
    "cost_model": None,
    "gpu": "a100",
    "model_shape": "llama-3.1-8b",
    "num_gpu_blocks": 60,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 256,
    "speedup": 4.0,
}
"""A pool in which 150 requests preempt each other."""

RULES: list[dict[str, Any]] = [
    {"batching": "prefill-first"},
    {"batching": "static"},
    {"max_num_prefill_tokens": 64, "max_num_decode_tokens": 8, "max_num_partial_prefills": 1},
    {"tpot_slo": 0.02, "step_estimate": "0.005:1e-5"},
    {"early_rejection": "expired", "ttft_slo": 0.5},
    {
        "early_rejection": "predicted",
        "ttft_slo": 0.5,
        "step_estimate": "0.01:5e-5",
        "max_queued_requests": 20,
    },
    {"preemption": "swap", "num_cpu_blocks": 40},
    {"preemption": "swap", "swap_space": 0.5, "policy": "srpt", "predictor": "lognormal:0.5"},
    {"policy": "srpt", "predictor": "lognormal:1", "refresh_predictions": 4},
]


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: ",".join(rules))
def test_a_run_under_every_rule_accounts_for_all_and_is_re_simulated(
    make_options: MakeOptions, tmp_path: Path, rules: dict[str, Any]
) -> None:
    run = read_run(replay(make_options(150, **TIGHT | rules)).directory)
    assert len(run.requests) == 150
    assert set(run.requests["finish_reason"]) <= {"length", "rejected"}
    assert resimulate(run.path, tmp_path / "again") == []


def served(make_options: MakeOptions, out: str, **options: Any) -> Run:
    return read_run(replay(make_options(150, out, **TIGHT | options)).directory)


def test_swapping_computes_nothing_again_where_recomputing_does(make_options: MakeOptions) -> None:
    recompute = served(make_options, "recompute").requests
    swap = served(make_options, "swap", preemption="swap", num_cpu_blocks=10_000).requests
    assert recompute["preemptions"].sum() > 0 and swap["preemptions"].sum() > 0
    assert recompute["recomputed_tokens"].sum() > 0 == swap["recomputed_tokens"].sum()


def test_the_copies_of_swapping_take_their_time(make_options: MakeOptions, tmp_path: Path) -> None:
    def clock(per_block: float) -> float:
        cost = tmp_path / "cost.json"
        cost.write_text(
            '{"kind": "linear", "base_s": 0.01, "per_token_s": 1e-5, "per_seq_s": 0, "per_context_token_s": 0, '
            f'"per_swapped_block_s": {per_block}}}'
        )
        options = {"gpu": None, "model_shape": None, "cost_model": str(cost)}
        run = served(make_options, f"{per_block}", **options, preemption="swap", num_cpu_blocks=10_000)
        return float(run.steps["end"].max())

    assert clock(0.01) > clock(0.0) + 0.1


def test_dropped_requests_are_rejected_with_the_reason_and_had_waited(make_options: MakeOptions) -> None:
    run = served(make_options, "run", early_rejection="expired", ttft_slo=0.3)
    dropped = run.requests[run.requests["finish_reason"] == "rejected"]
    assert len(dropped) > 0
    assert dropped["error"].str.contains("first-token deadline passed").all()
    assert dropped[["first_token", "finished"]].isna().all(axis=None)
    events = run.events[run.events["request_id"].isin(dropped["request_id"])]
    assert list(events.groupby("request_id")["event"].agg(list).iloc[0]) == ["queued", "rejected"]


@pytest.mark.parametrize(
    ("rule", "prompts", "refused_at"),
    [
        # The second waits for the one seat until 12 ms, its deadline was at 11; nobody else is there.
        ({"early_rejection": "expired", "max_num_seqs": 1}, [(0.0, 4, 6), (0.001, 4, 1)], 0.012),
        ({"early_rejection": "predicted", "step_estimate": "0:0.001"}, [(0.0, 4, 2), (0.05, 30, 1)], 0.05),
        # Submitted in mid-step, taken up and refused after it.
        ({"early_rejection": "predicted", "step_estimate": "0:0.001"}, [(0.0, 4, 2), (0.001, 30, 1)], 0.002),
    ],
)
def test_what_is_turned_away_is_re_simulated_at_its_time(
    tmp_path: Path, rule: dict[str, Any], prompts: list[tuple[float, int, int]], refused_at: float
) -> None:
    rows = [
        TraceRow(i, round(arrival * 1e9), prompt, output)
        for i, (arrival, prompt, output) in enumerate([*prompts, (0.2, 4, 1)])
    ]
    trace = Trace(iter(rows), Provenance("made by hand", "table", rows_in=3, rows_out=3))
    path = write_trace(trace, tmp_path / "rows.parquet")
    cost = tmp_path / "cost.json"
    cost.write_text(
        '{"kind": "linear", "base_s": 0.002, "per_token_s": 0, "per_seq_s": 0, "per_context_token_s": 0}'
    )
    options = ReplayOptions(
        path, tmp_path / "run", cost_model=str(cost), num_gpu_blocks=10, ttft_slo=0.01, **rule
    )
    run = read_run(replay(options).directory)
    assert list(run.requests.sort_values("request_id")["finish_reason"]) == ["length", "rejected", "length"]
    assert list(run.events[run.events["event"] == "rejected"]["time"]) == [refused_at]
    assert set(run.requests["submitted"]) == {0.0, prompts[1][0], 0.2}
    assert resimulate(run.path, tmp_path / "again") == []


def test_refreshed_predictions_change_the_schedule(make_options: MakeOptions) -> None:
    once = served(make_options, "once", policy="srpt", predictor="lognormal:1.5")
    again = served(make_options, "again", policy="srpt", predictor="lognormal:1.5", refresh_predictions=2)
    assert not once.steps.equals(again.steps)


def test_a_refreshed_prediction_is_the_tokens_so_far_and_a_new_guess_of_the_rest() -> None:
    records = [ArrivalRecord(f"r{row}", row, 0, 4, 100, 100) for row in (7, 8)]
    outputs = TargetLengthProcessor()
    wrapped = Refresh("lognormal:0.7", 5, every=10).wrap(outputs, records)
    predict = make_predictor("lognormal:0.7", 5)
    requests = [request_from(record) for record in records]
    batch = ScheduledBatch()
    for request, num_output_tokens in zip(requests, (29, 30), strict=True):
        outputs.add(request, 100)
        request.num_output_tokens, request.num_tokens = num_output_tokens, 4 + num_output_tokens
        batch.requests.append(request)
    first, second = wrapped.process(batch, None)
    assert predict is not None and first is not None
    assert first.predicted_output_tokens == 30 + predict(7, 70, 30)
    assert second is ONE_TOKEN


def test_refreshing_a_perfect_prediction_changes_nothing(make_options: MakeOptions) -> None:
    once = served(make_options, "once", policy="srpt", predictor="perfect")
    again = served(make_options, "again", policy="srpt", predictor="perfect", refresh_predictions=3)
    assert once.steps.equals(again.steps) and once.spans.equals(again.spans)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"refresh_predictions": 4}, "--refresh-predictions needs a --predictor"),
        ({"refresh_predictions": 0, "predictor": "perfect"}, "--refresh-predictions 0: give a number"),
        ({"refresh_predictions": 4, "predictor": "tau:0.5"}, "tau is an order of whole requests"),
        ({"preemption": "swap"}, "--preemption swap needs --num-cpu-blocks"),
        (
            {"preemption": "swap", "num_cpu_blocks": 9, "enable_prefix_caching": True},
            "excludes the prefix cache",
        ),
        ({"batching": "static", "policy": "srpt"}, "--batching static excludes a preemptive policy"),
        ({"tpot_slo": 0.1}, "--tpot-slo needs --step-estimate"),
        ({"early_rejection": "expired", "e2e_slo": 1.0}, "--early-rejection expired goes by deadlines"),
        ({"policy": "edf"}, "--policy edf goes by deadlines: give --ttft-slo, in seconds"),
        (
            {"policy": "edf", "policy_args": {"deadline": "e2e"}, "ttft_slo": 1.0},
            "--policy edf goes by deadlines: give --e2e-slo",
        ),
    ],
)
def test_a_rule_that_cannot_hold_is_one_line_and_nothing_is_written(
    make_options: MakeOptions, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        replay(make_options(5, **options))
    assert not (tmp_path / "run").exists()
