"""A whole run with fake engines: what is written, and what becomes of it when something goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments.bench.jobs import Job, JobResult, Served
from experiments.bench.report import AT_ONCE, MEMORY, OPEN_LOOP
from tinyllm.errors import IncompleteRunError, InputError

FILES = [
    "commands.md",
    "environment.json",
    "manifest.json",
    "raw.parquet",
    "report.md",
    "summary.json",
    "summary.parquet",
]


def _manifest(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "manifest.json").read_text())
    return found


def _failed(result: Any) -> list[str]:
    return [gate.name for gate in result.gates if not gate.ok]


def test_a_run_writes_every_file_and_passes_its_gates(fake_bench: Any) -> None:
    result = fake_bench.run()
    assert _failed(result) == [] and len(result.gates) == 8
    assert sorted(path.name for path in fake_bench.out.iterdir()) == FILES
    manifest = _manifest(fake_bench.out)
    # 6 workloads, 2 engines, 2 repeats; 8 single requests on the unloaded reference engine.
    assert manifest["status"] == "complete" and len(manifest["runs"]) == 6 * 2 * 2 + 8
    assert fake_bench.summary()["runs"] == {
        "planned": 24,
        "done": 24,
        "replays_planned": 8,
        "replays_done": 8,
    }


def test_all_engines_are_given_the_same_jobs_after_a_warm_up(fake_bench: Any) -> None:
    fake_bench.run()
    ours, theirs = (fake_bench.engines[name].jobs for name in ("tinyllm", "transformers-static"))
    alone = [job for job in ours if len(job.requests) == 1][-8:]
    assert {job.to_json() for job in ours} == {job.to_json() for job in [*theirs, *alone]}
    assert all(request.max_tokens <= 4 for job in ours[:4] for request in job.requests)
    assert [job.ignore_eos for job in theirs].count(False) == 2


def test_raw_rows_keep_every_token_of_every_request(fake_bench: Any) -> None:
    fake_bench.run()
    raw = pd.read_parquet(fake_bench.out / "raw.parquet")
    per_engine = 2 * (2 * 2 + 3 + 10 + 2 * 12)
    assert len(raw) == 2 * per_engine + 8
    assert (raw["token_times_s"].map(len) == raw["max_tokens"]).all()
    assert (raw["token_ids"].map(len) == raw["max_tokens"]).all()
    assert raw.loc[raw["kind"] == "open-loop", "warmup"].sum() == 2 * 2 * 2 * 2
    assert raw.groupby("run")["engine"].nunique().eq(1).all()


def test_the_report_has_every_column_and_the_ratios(fake_bench: Any) -> None:
    fake_bench.add("transformers-static", speed=50.0)
    fake_bench.run()
    report = (fake_bench.out / "report.md").read_text()
    for column in (*AT_ONCE, *OPEN_LOOP, *MEMORY):
        assert f"| {column.heading} |" in report, column
    for text in ("C_ref = ", "sha256 of model.safetensors", "1.0 GFLOP/s in matrix products", "FAILED"):
        assert (text in report) == (text != "FAILED")
    ratios = {row["workload"]: row["ratio"] for row in fake_bench.summary()["ratios"]}
    assert ratios["pair"] == pytest.approx(2.0) and ratios["poisson/at-once"] == pytest.approx(2.0)
    assert ratios["poisson/0.90"] > 2.0 and "correctness" not in ratios


def test_the_better_mode_of_a_family_counts(fake_bench: Any) -> None:
    fake_bench.add("transformers-continuous", speed=80.0)
    fake_bench.add("transformers-static", speed=50.0)
    fake_bench.run(backend="tinyllm,transformers")
    rows = fake_bench.summary()["ratios"]
    assert {row["mode"] for row in rows} == {"transformers-continuous"}
    assert next(row["ratio"] for row in rows if row["workload"] == "pair") == pytest.approx(1.25)


def test_the_spread_over_repeats_stands_behind_the_median(fake_bench: Any) -> None:
    engine = fake_bench.add("tinyllm")

    def slower_each_time(job: Job, result: JobResult) -> JobResult:
        engine.speed *= 0.999
        return result

    engine.spoil = slower_each_time
    fake_bench.run(backend="tinyllm")
    table = pd.read_parquet(fake_bench.out / "summary.parquet")
    pair = table[table["workload"] == "pair"].iloc[0]
    assert pair.tok_s_min < pair.tok_s < pair.tok_s_max
    assert pair.tok_s == pytest.approx((pair.tok_s_min + pair.tok_s_max) / 2)


def test_a_static_server_that_answers_all_at_the_end_has_no_decode_speed(fake_bench: Any) -> None:
    def at_the_end(job: Job, result: JobResult) -> JobResult:
        end = max(one.token_times_s[-1] for one in result.served)
        served = [replace(one, token_times_s=[end] * len(one.token_ids)) for one in result.served]
        return replace(result, served=served)

    fake_bench.add("tinyllm", spoil=at_the_end)
    assert _failed(fake_bench.run(backend="tinyllm")) == []
    row = next(row for row in fake_bench.summary()["rows"] if row["workload"] == "pair")
    assert row["decode_tok_s"] is None and row["tok_s"] > 0


# ── faults ───────────────────────────────────────────────────────────────────────────────────────────


def _first(change: Callable[[Served], Served | None]) -> Callable[[Job, JobResult], JobResult]:
    def spoil(job: Job, result: JobResult) -> JobResult:
        changed = change(result.served[0])
        return replace(result, served=[*([] if changed is None else [changed]), *result.served[1:]])

    return spoil


FAULTS: dict[str, tuple[Callable[[Job, JobResult], JobResult], set[str]]] = {
    "a lost request": (_first(lambda one: None), {"every request is accounted for exactly once"}),
    "a short output": (
        _first(lambda one: replace(one, token_ids=one.token_ids[:-1], token_times_s=one.token_times_s[:-1])),
        {"every output has the length asked for"},
    ),
    "time that steps back": (
        _first(lambda one: replace(one, submitted_s=one.token_times_s[-1] + 1)),
        {"token times never step back", "requests are handed over when they are due"},
    ),
    "another token": (
        _first(lambda one: replace(one, token_ids=[99, *one.token_ids[1:]])),
        {"engines give equal tokens"},
    ),
    "too much memory": (
        lambda job, result: replace(result, memory=replace(result.memory, peak_rss=500_000_000)),
        {"tinyllm keeps to its memory"},
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_planted_fault_fails_its_gate_and_is_in_the_report(case: str, fake_bench: Any) -> None:
    spoil, gates = FAULTS[case]
    fake_bench.add("tinyllm", spoil=spoil)
    result = fake_bench.run()
    assert gates <= set(_failed(result)) and not result.ok
    report = (fake_bench.out / "report.md").read_text()
    assert all(f"**FAILED**: {gate}" in report for gate in gates)
    assert sorted(path.name for path in fake_bench.out.iterdir()) == FILES


def test_an_interrupted_run_keeps_what_is_complete_and_says_so(fake_bench: Any) -> None:
    fake_bench.add("tinyllm", failure=KeyboardInterrupt(), fail_at=8)
    with pytest.raises(IncompleteRunError, match="interrupted after 7 runs"):
        fake_bench.run()
    manifest = _manifest(fake_bench.out)
    assert (manifest["status"], len(manifest["runs"])) == ("interrupted", 7)
    assert pd.read_parquet(fake_bench.out / "raw.parquet")["run"].nunique() == 7
    report = (fake_bench.out / "report.md").read_text()
    assert "**Interrupted**: interrupted after 7 runs." in report
    assert "**FAILED**: everything planned was run" in report and "### pair" in report


def test_an_engine_that_dies_fails_the_run_and_what_was_complete_is_reported(fake_bench: Any) -> None:
    fake_bench.add("transformers-static", failure=IncompleteRunError("engine x: it died"), fail_at=6)
    with pytest.raises(IncompleteRunError, match="it died"):
        fake_bench.run()
    assert _manifest(fake_bench.out)["status"] == "failed" and (fake_bench.out / "report.md").is_file()


def test_a_run_that_dies_before_its_first_result_still_ends_in_a_report(fake_bench: Any) -> None:
    fake_bench.add("tinyllm", failure=KeyboardInterrupt(), fail_at=5)
    with pytest.raises(IncompleteRunError, match="interrupted after 0 runs"):
        fake_bench.run(backend="tinyllm")
    assert fake_bench.summary()["rows"] == [] and _manifest(fake_bench.out)["runs"] == []


def test_an_engine_that_cannot_start_destroys_nothing(fake_bench: Any) -> None:
    fake_bench.run(backend="tinyllm")
    before = (fake_bench.out / "report.md").read_text()
    fake_bench.add("vllm-eager", failure=InputError("no such Python"), fail_at=0)
    with pytest.raises(InputError, match="--backend vllm-eager: no such Python"):
        fake_bench.run(backend="tinyllm,vllm-eager", force=True)
    assert (fake_bench.out / "report.md").read_text() == before


def test_a_mode_that_cannot_start_is_left_out_and_named(fake_bench: Any) -> None:
    fake_bench.add("transformers-continuous", failure=InputError("not on a CPU"), fail_at=0)
    result = fake_bench.run(backend="tinyllm,transformers")
    assert _failed(result) == []
    assert (
        "| transformers-continuous | **not run**: not on a CPU |"
        in (fake_bench.out / "report.md").read_text()
    )


def test_a_directory_in_use_is_not_touched(fake_bench: Any) -> None:
    fake_bench.out.mkdir()
    mine = fake_bench.out / "notes.txt"
    mine.write_text("mine")
    with pytest.raises(InputError, match="is not empty; give another directory, or --force"):
        fake_bench.run()
    with pytest.raises(InputError, match=r"holds 'notes.txt', which no benchmark wrote"):
        fake_bench.run(force=True)
    assert mine.read_text() == "mine" and fake_bench.engines == {}


def test_force_replaces_an_older_report_and_nothing_of_it_is_left(fake_bench: Any) -> None:
    fake_bench.run()
    fake_bench.run(force=True, backend="tinyllm", repeats=1)
    raw = pd.read_parquet(fake_bench.out / "raw.parquet")
    assert set(raw["engine"]) == {"tinyllm"} and set(raw["repeat"]) == {0}


def test_the_command_in_the_report_is_the_one_that_was_given(fake_bench: Any) -> None:
    fake_bench.run(backend="tinyllm", seed=3, requests=2)
    commands = (fake_bench.out / "commands.md").read_text()
    assert (
        f"--model {fake_bench.model} --out {fake_bench.out} --backend tinyllm --requests 2 --seed 3\n"
        in commands
    )
    hashes = fake_bench.summary()["workloads"]
    assert all(f"* {name}: `{digest}`" in commands for name, digest in hashes.items()) and "pair/1" in hashes
