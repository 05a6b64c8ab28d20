"""`tinyllm bench` on the command line, with the real engine in its process on a tiny checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from tinyllm.cli import app
from tinyllm.errors import InputError

pytest.importorskip("torch", reason="the engine of these tests needs the engine extra")


def _run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def test_the_real_engine_serves_a_whole_suite(fake_bench: Any) -> None:
    config = fake_bench.suite.parent / "options.toml"
    config.write_text('backend = "tinyllm"\nrepeats = 1\nrequests = 4\nnum-gpu-blocks = 64\n')
    given = [fake_bench.suite, "--model", fake_bench.model, "--out", fake_bench.out]
    result = _run(*given, "--config", config)
    # The gate of memory is for real models: the kernels of a tiny one weigh more than it.
    failed = [gate["name"] for gate in fake_bench.summary()["gates"] if not gate["ok"]]
    assert set(failed) <= {"tinyllm keeps to its memory"}, (result.output, fake_bench.summary()["gates"])
    assert "Report: " in result.output and "repeat 1 of 1, pair/1: tinyllm" in result.output
    raw = pd.read_parquet(fake_bench.out / "raw.parquet")
    assert (raw["finish_reason"] == "length").sum() >= len(raw) - 4 and raw["error"].isna().all()
    environment = json.loads((fake_bench.out / "environment.json").read_text())
    assert environment["engines"]["tinyllm"]["dtype"] == "float32"
    ceilings = fake_bench.summary()["ceilings"]
    assert ceilings["gflops"] > 0 and ceilings["read_gb_s"] > 0
    memory = fake_bench.summary()["memory"][0]
    assert (
        memory["kv_pool"] == 64 * 16 * 2 * 2 * 2 * 8 * 4 and memory["peak_rss"] > memory["rss_after_imports"]
    )


def test_a_dry_run_prints_the_plan_and_writes_nothing(fake_bench: Any) -> None:
    result = _run(fake_bench.suite, "--model", fake_bench.model, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "Suite tiny: A tiny suite." in result.stdout and "Expected: about " in result.stdout
    assert "tinyllm, transformers-static, transformers-continuous, vllm-eager, vllm-compiled" in result.stdout
    assert not fake_bench.out.exists()


def test_a_wrong_suite_is_an_error_of_input(tmp_path: Path) -> None:
    result = _run("slow", "--model", tmp_path, "--out", tmp_path / "out")
    assert isinstance(result.exception, InputError) and "SUITE slow: unknown; choose" in str(result.exception)


def test_a_run_needs_a_place_for_its_report(fake_bench: Any) -> None:
    result = _run(fake_bench.suite, "--model", fake_bench.model)
    assert isinstance(result.exception, InputError) and "--out: is missing" in str(result.exception)


def test_a_missing_vllm_is_told_before_anything_is_written(fake_bench: Any) -> None:
    given = [fake_bench.suite, "--model", fake_bench.model, "--out", fake_bench.out, "--backend", "vllm"]
    result = _run(*given, "--vllm-python", fake_bench.suite.parent / "nowhere")
    assert isinstance(result.exception, InputError), result.output
    assert "--backend vllm" in str(result.exception) and not fake_bench.out.exists()
