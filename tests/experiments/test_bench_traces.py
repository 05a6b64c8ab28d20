"""The files that the benchmark makes are of their formats, and memory does not grow with a trace."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.bench_traces import SHAPES, Rows, Usage, rows_of, write_file
from traces.load import open_trace

FEW, MANY = 35_000, 140_000

# In a process between pytest and the commands: a child's peak memory begins with that of its parent.
MEASURE = """
import sys
from pathlib import Path
from experiments.bench_traces import SHAPES, run_measured, write_file

folder, rows, *arguments = sys.argv[1:]
trace = Path(folder, "trace.csv")
write_file(trace, SHAPES["burstgpt3"], int(rows))
paths = {"TRACE": str(trace), "OUT": str(trace.with_suffix(".parquet"))}
print(run_measured(["trace", *(paths.get(each, each) for each in arguments)]).peak_rss)
"""


def _peak(folder: Path, rows: int, arguments: list[str]) -> int:
    command = [sys.executable, "-c", MEASURE, str(folder), str(rows), *arguments]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "TRACE", "--order", "sort", "--rate", "8"],
        ["convert", "TRACE", "--force", "--out", "OUT"],
    ],
)
def test_the_memory_of_a_command_does_not_grow_with_the_trace(tmp_path: Path, arguments: list[str]) -> None:
    grown = _peak(tmp_path, MANY, arguments) - _peak(tmp_path, FEW, arguments)
    # As Python objects the 105,000 rows more would take 30 MB.
    assert grown < 12e6


@pytest.mark.parametrize(
    ("name", "format", "start_s", "failures"),
    [
        ("burstgpt", "burstgpt", 5, 0.0178),
        ("burstgpt3", "burstgpt", 19_440_110, 0.0726),
        ("azure2024", "azure", 0, 0),
    ],
)
def test_a_generated_file_is_of_its_format_and_begins_and_fails_as_the_real_one(
    tmp_path: Path, name: str, format: str, start_s: int, failures: float
) -> None:
    path = tmp_path / "trace.csv"
    end_s = write_file(path, SHAPES[name], 3_000)
    trace = open_trace(path)
    rows = list(trace.rows)
    assert (trace.provenance.format, len(rows), rows[0].arrival_ns) == (format, 3_000, start_s * 10**9)
    assert len(rows) / (end_s - start_s) == pytest.approx(SHAPES[name].rate, rel=0.1)
    assert sum(row.output_tokens == 0 for row in rows) / len(rows) == pytest.approx(failures, abs=0.01)
    assert any(row.session for row in rows) == (name == "burstgpt3")


def test_rows_are_read_off_what_a_command_printed_or_off_its_run(tmp_path: Path) -> None:
    printed = Usage(
        0, 1.0, "wrote a.csv: 1,557 of 19,366 rows (dropped: before_window 3,313, after_window 14,496)\n"
    )
    assert rows_of(printed, tmp_path) == Rows(19_366, 1_557, 17_809)
    assert rows_of(Usage(0, 1.0, "rows  20 of 20 rows\n"), tmp_path) == Rows(20, 20, 0)
    (tmp_path / "run").mkdir()
    trace = {"rows_in": 9, "rows_out": 4, "dropped": {"after_head": 3, "zero_output": 2}}
    (tmp_path / "run/manifest.json").write_text(json.dumps({"trace": trace}))
    assert rows_of(Usage(0, 1.0, "Log: run\n"), tmp_path) == Rows(9, 4, 5)
