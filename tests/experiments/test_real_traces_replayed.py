"""Replays of the public traces: every row accounted for, prefix hits near what is possible at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from experiments.options import ReplayOptions
from experiments.replay import replay
from tinyllm.engine.record.reader import Run, read_run
from traces.info import summarize
from traces.prepare import prepare

SHARED = Path(os.environ.get("TINYLLM_TRACES", Path(__file__).parents[2].parent / "shared/traces"))

BURSTGPT = {
    "burstgpt/burstgpt_1_head30.csv": {},
    "burstgpt/burstgpt_1_same_second_4rows.csv": {},
    "burstgpt/burstgpt_3_head4.csv": {},
    "burstgpt/burstgpt_3_conv_head626.csv": {
        "columns": "arrival=arrival_s,session=session8,prompt_tokens=input_length,output_tokens=output_length",
        "unit": "s",
    },
}


def run_of(name: str, out: Path, **options: Any) -> Run:
    """Replay a shared trace on a simulated h100 with Llama-3.1-8B."""
    if not (SHARED / name).exists():
        pytest.skip(f"the real trace {name} is not there (TINYLLM_TRACES names its folder)")
    device = {"gpu": "h100", "model_shape": "llama-3.1-8b"}
    return read_run(replay(ReplayOptions(trace=SHARED / name, out=out, **{**device, **options})).directory)


def assert_accounted_for(run: Run, rows: int) -> None:
    """Each row of the file is one request that ended, or was dropped for a reason."""
    trace = run.manifest["trace"]
    assert trace["rows_in"] == rows
    assert len(run.requests) + sum(trace["dropped"].values()) == rows
    assert run.requests["source_row"].is_unique
    assert run.status == "complete"
    assert not run.requests["finish_reason"].isin(["unfinished", "abort", "error"]).any()
    served = run.requests[run.requests["finish_reason"] != "rejected"]
    assert served["output_tokens"].eq(served["target_output_tokens"]).all()


def hit_share(run: Run) -> float:
    """Cached over all prompt tokens, of the requests that were served."""
    served = run.requests[run.requests["finish_reason"] != "rejected"]
    return float(served["cached_prompt_tokens"].sum() / served["prompt_tokens"].sum())


def ideal_share(name: str, block_size: int, **filters: Any) -> float:
    share = summarize(prepare(SHARED / name, **filters), block_size).block_hit_share
    assert share is not None
    return share


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if "626" in name else name for name in BURSTGPT],
)
def test_the_burstgpt_samples_are_accounted_for(name: str, tmp_path: Path) -> None:
    run = run_of(name, tmp_path / "run", **BURSTGPT[name])
    rows = len((SHARED / name).read_text().splitlines()) - 1
    assert_accounted_for(run, rows)


@pytest.mark.slow
def test_all_rows_of_the_azure_conversation_trace_are_accounted_for(tmp_path: Path) -> None:
    run = run_of("azure2023/AzureLLMInferenceTrace_conv.csv", tmp_path / "run")
    assert_accounted_for(run, 19_366)
    assert len(run.requests) == 19_366


def test_prefix_hits_of_two_minutes_of_mooncake_are_near_the_ideal(tmp_path: Path) -> None:
    name = "mooncake/windows/conversation_first120s.jsonl"
    pool = {"num_gpu_blocks": 2_000_000, "max_model_len": 200_000, "max_num_batched_tokens": 8192}
    run = run_of(name, tmp_path / "run", **pool)
    assert_accounted_for(run, 339)
    ideal = ideal_share(name, 16)
    # Rows that share an unfinished prefix within a tick cannot hit it, so the simulation stays just below.
    assert ideal - 0.02 < hit_share(run) <= ideal
    assert hit_share(run) > 0.05


@pytest.mark.slow
def test_prefix_hits_of_the_whole_mooncake_conversation_are_within_half_a_point_of_the_ideal(
    tmp_path: Path,
) -> None:
    name = "mooncake/conversation_trace.jsonl.gz"
    pool = {"num_gpu_blocks": 1_000_000, "block_size": 512, "max_model_len": 200_000}
    run = run_of(name, tmp_path / "run", max_num_batched_tokens=16_384, **pool)
    assert_accounted_for(run, 12_031)
    ideal = ideal_share(name, 512)
    assert abs(hit_share(run) - ideal) < 0.005


def test_without_prefix_caching_nothing_is_hit(tmp_path: Path) -> None:
    name = "mooncake/windows/conversation_first120s.jsonl"
    pool = {"num_gpu_blocks": 100_000, "max_model_len": 200_000, "enable_prefix_caching": False}
    assert hit_share(run_of(name, tmp_path / "run", requests=40, **pool)) == 0
