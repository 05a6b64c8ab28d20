from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tinyllm.cli.trace import app
from tinyllm.errors import InputError
from traces.load import open_trace

CSV = "arrival_s,input_length,output_length,session8\n0,10,1,a\n5,20,0,a\n9,30,3,b\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(CSV)
    return path


def _run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    if result.exception is not None:
        raise result.exception
    return result.output


def test_info_shows_rows_drops_and_sessions(trace: Path) -> None:
    text = _run("info", trace)
    assert "2 of 3 rows (dropped: zero_output 1)" in text
    assert "2, 1.00 turns each" in text
    assert "warning: all times are whole seconds" in text


def test_info_applies_the_options_of_a_replay(trace: Path) -> None:
    assert "3 of 3 rows" in _run("info", trace, "--zero-output", "floor1", "--rate", "2")


def test_convert_keeps_every_row(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    assert _run("convert", trace, "--out", out) == f"wrote {out}: 3 of 3 rows\n"
    assert list(open_trace(out).rows) == list(open_trace(trace).rows)


def test_prepare_writes_what_a_replay_would_submit(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    options = [
        "--superpose",
        "2:4",
        "--spread-ticks",
        "1",
        "--idle-cap",
        "2",
        "--seed",
        "3",
        "--speedup",
        "2",
    ]
    assert "4 of 6 rows (dropped: zero_output 2)" in _run("prepare", trace, *options, "--out", out)
    rows = list(open_trace(out).rows)
    assert [row.session for row in rows] == ["a", "a#1", "b", "b#1"]
    assert max(after.arrival_ns - row.arrival_ns for row, after in pairwise(rows)) <= 10**9


def test_a_length_scale_means_the_same_in_every_command(trace: Path, tmp_path: Path) -> None:
    outs = [tmp_path / name for name in ("prepared.parquet", "converted.parquet")]
    for command, out in zip(("prepare", "convert"), outs, strict=True):
        _run(command, trace, "--length-scale", "0.25", "--out", out)
        exported = open_trace(out)
        (entry,) = exported.provenance.transforms
        assert {"name": "length_scale", "scale": 0.25} in entry["from"]["transforms"]
    lengths = [[row[2:4] for row in open_trace(out).rows] for out in outs]
    assert lengths == [[(3, 1), (8, 1)], [(3, 1), (5, 0), (8, 1)]]
    assert "mean 6, median 6," in _run("info", trace, "--length-scale", "0.25")


@pytest.mark.parametrize("command", ["info", "convert", "prepare"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--length-scale", "0.03"], "the nearest scale that works is 0.03125"),
        (["--length-scale", "0.03125", "--block-size", "64"], "the nearest scale that works is 0.125"),
        (["--length-scale", "0"], "--length-scale: 0 is not a finite number above 0"),
        (["--length-scale", "0.5", "--block-size", "0"], "--block-size: 0"),
    ],
)
def test_a_length_scale_that_does_not_suit_is_refused_by_every_command(
    tmp_path: Path, command: str, options: list[str], said: str
) -> None:
    path, out = tmp_path / "trace.jsonl", tmp_path / "out.csv"
    path.write_text('{"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [1, 2]}\n')
    with pytest.raises(InputError, match=said):
        _run(command, path, *options, *(() if command == "info" else ("--out", out)))
    assert not out.exists()


def test_window_says_what_it_left_out(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert "1 of 3 rows (dropped: before_window 1, after_window 1)" in _run(
        "window", trace, "5:9", "--out", out
    )
    assert [row.source_row for row in open_trace(out).rows] == [1]


def test_an_empty_window_writes_no_file(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    with pytest.raises(InputError, match="no row is left"):
        _run("window", trace, "100:200", "--out", out)
    assert not out.exists()


def test_generate_writes_the_same_trace_for_the_same_seed(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        _run("generate", "--requests", 50, "--seed", 4, "--out", tmp_path / name)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


@pytest.mark.parametrize("command", ["info", "convert", "prepare", "window", "generate"])
def test_every_command_has_an_example(command: str) -> None:
    assert f"Example: tinyllm trace {command}" in _run(command, "--help")


def test_the_command_imports_nothing_heavy_before_it_runs() -> None:
    code = "import sys, tinyllm.cli.trace; print(sorted({'numpy', 'pandas', 'pyarrow', 'traces'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
