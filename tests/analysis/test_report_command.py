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


def test_service_levels_and_tenants_are_on_the_page_and_in_the_terminal(tmp_path, serve):
    pytest.importorskip("matplotlib", reason="extra `report` is not installed")
    jobs = [{"arrival": 0.0, "prompt": 3, "output": 2, "tenant": tenant} for tenant in ("ada", "<bob>")]
    path, out = str(serve(jobs)[0]), tmp_path / "report.html"
    slos = ["--ttft-slo", "1.5", "--tpot-slo", "1", "--e2e-slo", "9"]
    result = CliRunner().invoke(app, [path, "--out", str(out), *slos])
    assert result.exit_code == 0
    assert "goodput" in result.output and "<bob>" in result.output
    html = out.read_text()
    assert "TTFT ≤ 1.5 s, TPOT ≤ 1 s, E2E ≤ 9 s" in html
    assert "Jain index" in html and "&lt;bob&gt;" in html and "<bob>" not in html


def test_without_service_levels_or_tenants_the_page_has_no_such_section(tmp_path, serve):
    pytest.importorskip("matplotlib", reason="extra `report` is not installed")
    path, out = str(serve([{"arrival": 0.0, "prompt": 3, "output": 2}])[0]), tmp_path / "report.html"
    assert CliRunner().invoke(app, [path, "--out", str(out)]).exit_code == 0
    html = out.read_text()
    assert "Service levels" not in html and "Tenants" not in html


@pytest.mark.parametrize("slo", ["0", "-1", "nan"])
def test_a_service_level_that_is_not_above_0_is_one_line(tmp_path, serve, slo):
    path = str(serve([{"arrival": 0.0, "prompt": 3, "output": 2}])[0])
    result = CliRunner().invoke(app, [path, "--out", str(tmp_path / "r.html"), "--tpot-slo", slo])
    assert isinstance(result.exception, InputError)
    assert str(result.exception) == f"--tpot-slo {slo}: give seconds above 0"
