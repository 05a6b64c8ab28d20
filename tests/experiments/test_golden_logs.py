"""Logs of a small workload under each policy, step by step, as they were when somebody last looked at them.

After a change that is meant to alter them, write them anew and read the difference before committing it:

    TINYLLM_WRITE_GOLDEN=1 pytest tests/experiments/test_golden_logs.py && git diff tests/golden
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from experiments.options import ReplayOptions
from experiments.replay import replay
from tinyllm.engine.record.reader import Run, read_run
from tinyllm.policy.registry import POLICIES

GOLDEN = Path(__file__).parents[1] / "golden"

COLUMNS = ("num_running", "num_waiting", "prefill_tokens", "decode_tokens", "blocks_used", "blocks_cached")
HEADER = "step,start_ms,end_ms,running,waiting,prefill_tokens,decode_tokens,used,cached,events\n"

POLICY_ARGS: dict[str, dict[str, object]] = {
    "aged-priority": {"aging": 0.1},
    "edf": {"deadline": "token", "tpot": 0.03, "expired": "last", "preemptive": False},
    "rate-limit": {"rate": 150, "burst": 60},
}
"""Where the defaults make no difference on so small a workload."""


def run_of(policy: str, trace: Path, out: Path) -> Run:
    """A pool of 24 blocks of 4 tokens, so small that it preempts and evicts."""
    cost = out.with_suffix(".json")
    cost.write_text(
        '{"kind": "linear", "base_s": 0.01, "per_token_s": 0.001, "per_seq_s": 0.0005, '
        '"per_context_token_s": 1e-5, "gap_s": 0.0002}'
    )
    options = ReplayOptions(
        trace=trace,
        out=out,
        policy=policy,
        policy_args=POLICY_ARGS.get(policy, {}),
        ttft_slo=0.2,
        predictor="lognormal:0.5",
        seed=7,
        cost_model=str(cost),
        num_gpu_blocks=24,
        block_size=4,
        max_num_seqs=5,
        max_num_batched_tokens=24,
    )
    return read_run(replay(options).directory)


def as_text(run: Run) -> str:
    """One line a step, with the events that happened in it or before it, since the step before."""
    happened: dict[int, list[str]] = {}
    for event in run.events.to_dict("records"):
        happened.setdefault(event["step"], []).append(f"{event['request_id']} {event['event']}")
    lines = [HEADER]
    for step in run.steps.to_dict("records"):
        counts = ",".join(str(step[column]) for column in COLUMNS)
        times = f"{step['start'] * 1e3:.3f},{step['end'] * 1e3:.3f}"
        lines.append(f"{step['step']},{times},{counts},{'; '.join(happened.get(step['step'], []))}\n")
    return "".join(lines)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_log_is_the_golden_one(policy: str, shared_prefixes: Path, tmp_path: Path) -> None:
    run = run_of(policy, shared_prefixes, tmp_path / "run")
    text = as_text(run)
    golden = GOLDEN / f"{policy}.csv"
    if os.environ.get("TINYLLM_WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text.splitlines() == golden.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_golden_workload_preempts_and_hits_the_prefix_cache(
    policy: str, shared_prefixes: Path, tmp_path: Path
) -> None:
    requests = run_of(policy, shared_prefixes, tmp_path / "run").requests
    assert requests["finish_reason"].isin(["length", "stop"]).all()
    assert requests["preemptions"].sum() >= 5
    assert requests["recomputed_tokens"].sum() > 0
    assert requests["cached_prompt_tokens"].sum() > 40


def test_the_policies_differ_on_the_golden_workload() -> None:
    assert len({(GOLDEN / f"{policy}.csv").read_text(encoding="utf-8") for policy in POLICIES}) == len(
        POLICIES
    )
