"""`tinyllm report` as a command."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from tinyllm.cli.report import report
from tinyllm.errors import InputError

app = typer.Typer()
app.command()(report)


def test_a_path_that_is_no_run_is_one_line_and_writes_nothing(tmp_path):
    out = tmp_path / "report.html"
    result = CliRunner().invoke(app, [str(tmp_path), "--out", str(out)])
    assert isinstance(result.exception, InputError)
    assert "has no manifest.json" in str(result.exception)
    assert not out.exists()


def test_the_help_has_an_example():
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})
    assert "tinyllm report runs/fcfs runs/srpt --out runs/report.html" in result.output


def test_two_runs_are_printed_and_reported(tmp_path, serve):
    pytest.importorskip("matplotlib", reason="extra `report` is not installed")
    jobs = [{"arrival": 0.0, "prompt": 3, "output": 2}]
    paths = [str(serve(jobs, name=name)[0]) for name in ("one", "two")]
    out = tmp_path / "report.html"
    result = CliRunner().invoke(app, [*paths, "--out", str(out)])
    assert result.exit_code == 0
    assert "one" in result.output
    assert f"Report: {out}" in result.output
    assert out.read_text().startswith("<!doctype html>")
