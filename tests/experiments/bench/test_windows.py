"""Windows of a trace: where they begin, what is in them, where they come from."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.bench.plan import make_plan
from experiments.bench.windows import AZURE_CONV, window_starts
from tinyllm.errors import InputError

WINDOWS = """
about = "windows"

[trace]
positions = [0.1, 0.5, 0.9]
requests = 20
warmup = 4
loads = [0.5]
prompt_buckets = [20, 40]
"""
POSITIONS = (0.1, 0.5, 0.9)


@given(num_rows=st.integers(1, 3000), warmup=st.integers(0, 40), measured=st.integers(2, 1000))
def test_windows_lie_apart_and_inside_or_are_refused(num_rows: int, warmup: int, measured: int) -> None:
    size = warmup + measured
    try:
        starts = window_starts(POSITIONS, num_rows, warmup, measured, "a trace")
    except InputError as error:
        assert "apart from each other" in str(error) and num_rows < 10 * size
        return
    assert starts[0] >= 0 and starts[-1] + size <= num_rows
    assert all(late - early >= size for early, late in pairwise(starts))


def test_the_warm_up_ends_at_the_position() -> None:
    assert window_starts(POSITIONS, 19_366, 32, 1000, "azure") == [1904, 9651, 17397]


def test_a_short_trace_is_refused_with_the_number_that_fits() -> None:
    with pytest.raises(InputError) as error:
        window_starts(POSITIONS, 626, 32, 1000, "trace x")
    number = int(str(error.value).partition("--requests ")[2].split()[0])
    assert window_starts(POSITIONS, 626, round(0.032 * number), number, "trace x")
    with pytest.raises(InputError):
        window_starts(POSITIONS, 626, round(0.032 * (number + 1)), number + 1, "trace x")


@pytest.fixture
def windows(fake_bench: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("TINYLLM_TRACES", raising=False)
    fake_bench.suite.write_text(WINDOWS)
    return fake_bench


def test_without_a_trace_one_is_generated_and_called_so(windows: Any) -> None:
    plan = make_plan(windows.options(length_scale=0.02))
    assert plan.trace is not None and plan.trace.label.startswith("a generated trace (burstgpt-like, ")
    assert [stream.name for stream in plan.streams] == ["window-10", "window-50", "window-90"]
    rows = [row.source_row for stream in plan.streams for row in stream.rows]
    assert len(rows) == len(set(rows)) == 3 * 24
    for stream in plan.streams:
        assert [len(prompt) for prompt in stream.prompts] == [row.prompt_tokens for row in stream.rows]


def test_windows_are_rows_of_the_users_trace(windows: Any, tmp_path: Path) -> None:
    trace = tmp_path / "mine.csv"
    lines = [
        f"{second},ChatGPT,{10 + second % 50},{1 + second % 7},0,Conversation log" for second in range(300)
    ]
    lines.insert(40, "39,ChatGPT,5,0,5,API log")  # a failure, which is no row to serve
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    trace.write_text("\n".join([header, *lines]) + "\n")
    plan = make_plan(windows.options(trace=trace))
    assert plan.trace is not None and plan.trace.label == "burstgpt trace mine.csv"
    assert plan.trace.provenance["rows"] == 300
    first = plan.streams[0]
    assert [row.source_row for row in first.rows[:4]] == [26, 27, 28, 29]
    assert [row.prompt_tokens for row in first.rows[4:7]] == [40, 41, 42]
    assert plan.max_model_len == max(
        row.prompt_tokens + row.output_tokens for stream in plan.streams for row in stream.rows
    )


def test_azure_is_taken_from_the_folder_of_traces(windows: Any, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / AZURE_CONV
    path.parent.mkdir()
    rows = [f"2023-11-16 18:17:{n % 60:02}.{n:07},{20 + n % 9},{1 + n % 5}" for n in range(60)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    monkeypatch.setenv("TINYLLM_TRACES", str(tmp_path))
    plan = make_plan(windows.options(requests=3))
    assert plan.trace is not None and plan.trace.label == f"azure trace {AZURE_CONV.name}"


def test_a_report_says_where_its_windows_come_from_and_cuts_them_by_length(windows: Any) -> None:
    result = windows.run(length_scale=0.02, requests=12, backend="tinyllm")
    assert result.ok, result.gates
    report = (windows.out / "report.md").read_text()
    assert "| trace | a generated trace (burstgpt-like" in report and "The same by prompt length:" in report
    summary = windows.summary()
    assert summary["trace"]["format"] == "generated" and summary["runs"]["replays_done"] == 3
    replays = [row for row in summary["rows"] if row["workload"] == "window-50/0.50"]
    whole = next(row for row in replays if row["bucket"] is None)
    buckets = [row for row in replays if row["bucket"] is not None]
    assert sum(row["requests"] for row in buckets) == whole["requests"] == 12
    assert {row["bucket"] for row in buckets} == {"1–1", "2–"}
