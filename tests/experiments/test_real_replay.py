"""Real replays of a tiny random checkpoint: their log, its re-simulation, and how they end."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from experiments import demo_real
from experiments.options import ReplayOptions
from experiments.progress import Report
from experiments.replay import replay
from experiments.resim import Difference, resimulate
from experiments.run_directory import BLOCK_HASHES_FILE
from tinyllm.cli import app
from tinyllm.engine.record.reader import Run, read_run
from tinyllm.engine.record.schema import TABLES, WORKLOAD
from tinyllm.errors import IncompleteRunError, InputError
from tinyllm.policy.fcfs import FCFS
from tinyllm.policy.request import Request
from traces.export import write_trace
from traces.schema import Provenance, Trace, TraceRow

MakeReal = Callable[..., ReplayOptions]
REQUESTS = 12
BLOCK_SIZE = 4
TIGHT = {"num_gpu_blocks": 18, "block_size": BLOCK_SIZE, "max_num_batched_tokens": 24}
"""A pool of 72 tokens for requests of up to 41: some are preempted."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def small_trace(tmp_path: Path) -> Callable[..., Path]:
    """Twelve requests within 11 ms; with `shared`, two system prompts of 8 tokens are shared."""

    def make(shared: bool = False, gap_ns: int = 1_000_000) -> Path:
        rows = []
        for n in range(REQUESTS):
            prompt = 9 + (n * 7) % 20
            ids = tuple(n % 2 if block == 0 else 10 * n + block for block in range(-(-prompt // 8)))
            rows.append(
                TraceRow(
                    n,
                    n * gap_ns,
                    prompt,
                    4 + (n * 5) % 9,
                    ("ada", "bob")[n % 2],
                    prefix_ids=ids * shared or None,
                )
            )
        trace = Trace(
            iter(rows), Provenance("made by hand", "table", rows_in=REQUESTS), 8 if shared else None
        )
        return write_trace(trace, tmp_path / "small.parquet", force=True)

    return make


@pytest.fixture
def make_real(small_trace: Callable[..., Path], tiny_llama: Any, tmp_path: Path) -> MakeReal:
    """`make_real(policy="srpt")`: a real replay of the small trace that a slow machine does not invalidate."""

    def make(
        out: str = "real", shared: bool = False, gap_ns: int = 1_000_000, **options: Any
    ) -> ReplayOptions:
        defaults = {
            "mode": "real",
            "model": tiny_llama.directory,
            "num_gpu_blocks": 400,
            "block_size": BLOCK_SIZE,
            "max_lag_share": float("inf"),
        }
        return ReplayOptions(trace=small_trace(shared, gap_ns), out=tmp_path / out, **{**defaults, **options})

    return make


def run_of(options: ReplayOptions) -> Run:
    replay(options)
    return read_run(options.out)


# ── the log ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_real_run_completes_with_the_tables_and_dtypes_of_a_simulation(make_real: MakeReal) -> None:
    run = run_of(make_real())
    simulated = run_of(make_real("sim", mode="sim", cost_model="yardstick"))
    for table in (*TABLES, "workload"):
        real, sim = getattr(run, table), getattr(simulated, table)
        assert real.dtypes.equals(sim.dtypes) and len(real) > 0
    for name, schema in {**TABLES, "workload": WORKLOAD}.items():
        assert getattr(run, name).columns.tolist() == schema.names
    assert run.status == "complete" and run.manifest["mode"] == "real" and run.manifest["valid"] is True
    assert run.requests["finish_reason"].eq("length").all()
    assert run.requests["output_tokens"].eq(run.requests["target_output_tokens"]).all()
    assert run.steps["sampled_tokens"].sum() == run.requests["output_tokens"].sum()
    assert run.workload.drop(columns="prefix_ids").equals(simulated.workload.drop(columns="prefix_ids"))


def test_times_of_a_real_run_are_those_of_one_clock(make_real: MakeReal) -> None:
    run = run_of(make_real())
    requests, steps = run.requests, run.steps
    for earlier, later in (
        ("arrival", "submitted"),
        ("submitted", "first_scheduled"),
        ("first_scheduled", "first_token"),
        ("first_token", "finished"),
    ):
        assert (requests[earlier] <= requests[later]).all(), (earlier, later)
    assert (steps["start"] < steps["end"]).all()
    assert (steps["start"].to_numpy()[1:] >= steps["end"].to_numpy()[:-1]).all()
    assert steps["execute_s"].gt(0).all()
    assert run.workload["arrival"].tolist() == [n / 1000 for n in range(REQUESTS)]


# ── re-simulation ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", ["fcfs", "srpt", "vtc"])
def test_every_decision_under_preemption_is_made_again(
    make_real: MakeReal, tmp_path: Path, policy: str
) -> None:
    options = make_real(policy=policy, predictor="perfect", **TIGHT)
    run = run_of(options)
    assert run.requests["preemptions"].sum() > 0 and run.requests["recomputed_tokens"].sum() > 0
    assert resimulate(options.out, tmp_path / "again") == []
    assert read_run(tmp_path / "again").manifest["mode"] == "resim"


@pytest.mark.parametrize(
    "rules",
    [
        {"batching": "prefill-first"},
        {"max_num_prefill_tokens": 16, "max_num_decode_tokens": 2, "max_num_partial_prefills": 1},
        {"tpot_slo": 0.001, "step_estimate": "0.0005:1e-5"},
        {"early_rejection": "expired", "ttft_slo": 0.02},
        {
            "early_rejection": "predicted",
            "ttft_slo": 0.05,
            "step_estimate": "0.01:1e-4",
            "max_queued_requests": 6,
        },
        {"policy": "srpt", "predictor": "lognormal:1", "refresh_predictions": 2},
    ],
    ids=lambda rules: ",".join(rules),
)
def test_every_decision_under_the_rules_beside_the_policy_is_made_again(
    make_real: MakeReal, tmp_path: Path, rules: dict[str, Any]
) -> None:
    run = run_of(make_real(**TIGHT | rules))
    assert len(run.requests) == REQUESTS
    assert resimulate(run.path, tmp_path / "again") == []


@pytest.mark.parametrize("hashes", ["recorded", "prefix-ids"])
def test_every_decision_with_prefix_hits_is_made_again(
    make_real: MakeReal, tmp_path: Path, hashes: Any
) -> None:
    # Two seats, so that not all prompts are computed in one step, without sharing anything.
    options = make_real(shared=True, max_num_seqs=2)
    run = run_of(options)
    assert run.requests["cached_prompt_tokens"].sum() > 0
    assert resimulate(options.out, tmp_path / "again", hashes=hashes) == []


def test_a_prefix_cache_in_a_pool_that_preempts_is_re_simulated(make_real: MakeReal, tmp_path: Path) -> None:
    options = make_real(shared=True, **TIGHT)
    run = run_of(options)
    assert run.requests["preemptions"].sum() > 0 and run.requests["cached_prompt_tokens"].sum() > 0
    assert resimulate(options.out, tmp_path / "again") == []


def test_without_the_recorded_hashes_a_cached_run_says_what_to_do(
    make_real: MakeReal, tmp_path: Path
) -> None:
    options = make_real(shared=True)
    replay(options)
    (options.out / BLOCK_HASHES_FILE).unlink()
    with pytest.raises(InputError, match=r"block_hashes\.parquet: missing.*--hashes prefix-ids"):
        resimulate(options.out, tmp_path / "again")


def change(run: Path, table: str, column: str, row: int, value: Any) -> None:
    """Overwrite one cell of the first part of a table."""
    part = run / table / "part-00000.parquet"
    found = pq.read_table(part)
    values = found[column].to_pylist()
    values[row] = value
    place = found.schema.get_field_index(column)
    pq.write_table(
        found.set_column(place, found.schema.field(place), pa.array(values, found[column].type)), part
    )


def test_one_changed_cell_is_found_and_named(make_real: MakeReal, tmp_path: Path) -> None:
    options = make_real()
    replay(options)
    for table, column, value in (
        ("steps", "num_running", 77),
        ("spans", "tokens", 77),
        ("requests", "recomputed_tokens", 77),
        ("requests", "first_token", 77.0),
        ("events", "detail", "because"),
    ):
        changed = shutil.copytree(options.out, tmp_path / f"{table}-{column}")
        change(changed, table, column, 3, value)
        (difference,) = resimulate(changed, tmp_path / "again", force=True)
        assert (difference.table, difference.rows) == (table, 1)
        assert f"{column} is {value!r} recorded" in difference.detail


def test_a_lost_row_is_found_and_the_command_ends_with_1(make_real: MakeReal, tmp_path: Path) -> None:
    options = make_real()
    replay(options)
    part = options.out / "spans" / "part-00000.parquet"
    spans = pq.read_table(part)
    pq.write_table(spans.slice(1), part)
    result = CliRunner().invoke(app, ["resim", str(options.out), "--out", str(tmp_path / "again")])
    assert isinstance(result.exception, IncompleteRunError) and result.exception.exit_code == 1
    lengths = f"{len(spans) - 1} rows recorded, {len(spans)} simulated"
    assert f"spans: 1 rows differ; first: {lengths}" in result.stdout


def test_measured_durations_are_no_decisions(make_real: MakeReal, tmp_path: Path) -> None:
    options = make_real()
    replay(options)
    change(options.out, "steps", "schedule_s", 2, 55.0)
    assert resimulate(options.out, tmp_path / "again") == []


# ── what policies see ────────────────────────────────────────────────────────────────────────────────


class Notes(FCFS):
    """First come first served; notes the output lengths that it is shown."""

    seen: dict[str, int]

    def __init__(self) -> None:
        super().__init__()
        type(self).seen = {}

    def on_arrival(self, view: Request, now: int) -> None:
        self.seen[view.request_id] = view.max_tokens
        assert not any("target" in name for name in dir(view))


def test_a_policy_is_shown_what_clients_declare_and_the_target_ends_the_output(
    make_real: MakeReal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.replay.make_policy", lambda name, args: Notes())
    run = run_of(make_real(declared_max_tokens="50"))
    assert Notes.seen == {f"r{n}": 50 for n in range(REQUESTS)}
    assert run.requests["max_tokens"].eq(50).all()
    assert run.requests["output_tokens"].eq(run.requests["target_output_tokens"]).all()
    assert run.requests["target_output_tokens"].lt(50).all()


# ── how outputs and runs end ─────────────────────────────────────────────────────────────────────────


def test_with_eos_stop_the_model_ends_its_outputs(make_real: MakeReal, make_checkpoint: Any) -> None:
    checkpoint = make_checkpoint(eos_token_id=list(range(64)))
    run = run_of(make_real(model=checkpoint.directory, eos="stop", declared_max_tokens="40"))
    assert run.manifest["eos"] == "stop"
    assert set(run.requests["finish_reason"]) <= {"stop", "length"}
    stopped = run.requests[run.requests["finish_reason"] == "stop"]
    assert len(stopped) > 0 and stopped["output_tokens"].lt(40).all()
    ran_out = run.requests[run.requests["finish_reason"] == "length"]
    assert ran_out["output_tokens"].eq(40).all()
    assert (run.requests["output_tokens"] != run.requests["target_output_tokens"]).any()
    ignoring = run_of(make_real("ignoring", model=checkpoint.directory, eos="ignore"))
    assert ignoring.requests["finish_reason"].eq("length").all()


def ctrl_c_after(num_ended: int) -> Callable[[int], Any]:
    """A reporter that presses Ctrl-C once when so many requests have ended."""

    @contextmanager
    def reporter(total: int) -> Iterator[Report]:
        pressed = False

        def report(now: int, done: int) -> None:
            nonlocal pressed
            if done >= num_ended and not pressed:
                pressed = True
                signal.raise_signal(signal.SIGINT)

        yield report

    return reporter


@pytest.mark.parametrize("shared", [False, True])
def test_ctrl_c_leaves_a_valid_log_that_says_interrupted(
    make_real: MakeReal, tmp_path: Path, shared: bool
) -> None:
    options = make_real(shared=shared, max_num_seqs=2)
    with pytest.raises(IncompleteRunError, match="interrupted") as caught:
        replay(options, ctrl_c_after(3))
    assert caught.value.exit_code == 1
    run = read_run(options.out)
    assert run.status == "interrupted" and run.manifest["num_steps"] == len(run.steps)
    reasons = run.requests["finish_reason"].value_counts()
    assert reasons["length"] >= 3 and reasons["unfinished"] >= 1 and reasons.sum() == REQUESTS
    assert run.steps["sampled_tokens"].sum() == run.requests["output_tokens"].sum()
    assert (options.out / BLOCK_HASHES_FILE).exists() == shared


def test_a_run_that_was_handed_over_late_is_invalid(make_real: MakeReal) -> None:
    # All are due while the first steps run, and a request is only handed over between two steps.
    options = make_real(gap_ns=1, max_lag_share=0.0)
    with pytest.raises(
        IncompleteRunError, match=r"invalid: .*--max-lag-share 0; use an idle machine"
    ) as caught:
        replay(options)
    assert caught.value.exit_code == 1
    manifest = json.loads((options.out / "manifest.json").read_text())
    assert manifest["status"] == "complete" and manifest["valid"] is False and manifest["lag_share"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": None}, "--mode real needs --model DIR"),
        ({"eos": "never"}, "--eos never: choose ignore .* or stop"),
        ({"max_lag_share": float("nan")}, "--max-lag-share nan: give a share"),
        ({"attention": "flashy"}, "flashy"),
        ({"dtype": "float12"}, "float12"),
        ({"preemption": "swap", "num_cpu_blocks": 4}, "--preemption swap exists in simulation only"),
        ({"eos": "stop", "refresh_predictions": 2, "predictor": "perfect"}, "needs --eos ignore"),
    ],
)
def test_a_wrong_option_is_one_line(make_real: MakeReal, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        replay(make_real(**options))
    assert "\n" not in str(caught.value)


def test_a_checkpoint_without_a_tokenizer_is_one_line(
    make_real: MakeReal, tiny_llama: Any, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny_llama.directory, tmp_path / "mute")
    (model / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"--model .*mute: has no tokenizer\.json") as caught:
        replay(make_real(model=model))
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


def test_a_checkpoint_that_cannot_be_loaded_leaves_the_older_run_alone(
    make_real: MakeReal, tiny_llama: Any, tmp_path: Path
) -> None:
    options = make_real()
    replay(options)
    before = (options.out / "manifest.json").read_bytes()
    model = shutil.copytree(tiny_llama.directory, tmp_path / "cut")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(InputError, match="safetensors"):
        replay(make_real(model=model, force=True))
    assert (options.out / "manifest.json").read_bytes() == before
    with pytest.raises(InputError, match="safetensors"):
        replay(make_real(model=model, out=tmp_path / "fresh"))
    assert not (tmp_path / "fresh").exists()


# ── the demo's part ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def quick_demo(monkeypatch: pytest.MonkeyPatch, tiny_llama: Any) -> None:
    monkeypatch.setattr(demo_real, "find_model", lambda models: tiny_llama.directory)
    monkeypatch.setattr(demo_real, "RATE", 500.0)


def test_the_demo_replays_re_simulates_and_simulates_on_a_fitted_device(
    quick_demo: None, make_trace: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("scipy", reason="extra `calibrate` is not installed")
    trace = make_trace(40, output="lognormal:median=400,sigma=0.2")
    demo_real.real_part(trace, tmp_path / "demo", tmp_path / "models", seed=3)
    printed = capsys.readouterr().out
    assert "re-simulated: every decision of" in printed
    real, simulated = (read_run(tmp_path / "demo" / name) for name in ("real", "real-simulated"))
    assert len(real.requests) == demo_real.REQUESTS
    assert simulated.manifest["cost_model"]["kind"] == "linear"
    assert simulated.requests["finish_reason"].eq("length").all()
    pd.testing.assert_series_equal(simulated.workload["prompt_tokens"], real.workload["prompt_tokens"])


def test_the_demo_stops_at_a_re_simulation_that_differs(
    quick_demo: None, make_trace: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    difference = Difference("steps", 1, "step 3: num_running is 2 recorded, 1 simulated")
    monkeypatch.setattr(demo_real, "resimulate", lambda *arguments, **options: [difference])
    with pytest.raises(IncompleteRunError, match="the re-simulation differs: step 3"):
        demo_real.real_part(make_trace(40), tmp_path / "demo", tmp_path / "models", seed=3)


def test_the_demo_says_why_it_skips_the_real_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_real, "find_spec", lambda package: None)
    demo_real.real_part(tmp_path / "no.parquet", tmp_path / "demo", tmp_path / "models", seed=0)
    assert "Real model: skipped. torch is not installed: pip install" in capsys.readouterr().out
    assert not (tmp_path / "demo").exists()
