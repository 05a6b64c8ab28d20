from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.errors import IncompleteRunError, InputError
from traces.export import provenance_dict, write_trace
from traces.load import open_trace
from traces.prepare import prepare
from traces.schema import Provenance, Trace, TraceRow

MakeTrace = Callable[..., Trace]

NAMES = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5)


@st.composite
def any_rows(draw: st.DrawFn) -> list[TraceRow]:
    arrivals = sorted(draw(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=8)))
    rows = []
    for at in arrivals:
        prompt = draw(st.integers(0, 40))
        count = -(-prompt // 16)
        ids = draw(
            st.none() | st.lists(st.integers(-(2**60), 2**60), min_size=count, max_size=count).map(tuple)
        )
        priority = draw(st.integers(-9, 9))
        numbers = draw(st.integers(0, 10**9)), at, prompt, draw(st.integers(0, 40))
        elapsed = draw(st.none() | st.integers(0, 2**63 - 1))
        rows.append(TraceRow(*numbers, draw(NAMES), draw(NAMES), priority, ids, elapsed))
    return rows


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@given(rows=any_rows())
def test_exported_rows_load_identically(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, rows: list[TraceRow]
) -> None:
    out = tmp_path_factory.mktemp("export") / f"trace{suffix}"
    write_trace(Trace(iter(rows), Provenance("a", "table"), 16), out)
    loaded = open_trace(out)
    assert loaded.prefix_block_size == 16
    assert loaded.provenance.format == "tinyllm"
    assert list(loaded.rows) == rows


def test_parquet_carries_the_provenance(tmp_path: Path, make_trace: MakeTrace) -> None:
    trace = prepare(make_trace([TraceRow(0, 5, 3, 0), TraceRow(1, 9, 3, 3)]))
    out = write_trace(trace, tmp_path / "trace.parquet")
    (entry,) = open_trace(out).provenance.transforms
    assert entry == {"name": "exported", "from": provenance_dict(trace.provenance)}
    assert entry["from"]["dropped"] == {"zero_output": 1}


def test_an_exported_window_replays_with_the_arrivals_it_has(tmp_path: Path, make_trace: MakeTrace) -> None:
    rows = [TraceRow(0, 0, 3, 3), TraceRow(1, 3 * 10**9, 3, 3), TraceRow(2, 9 * 10**9, 3, 3)]
    out = write_trace(prepare(make_trace(rows), window="2:20"), tmp_path / "trace.parquet")
    assert list(prepare(out).rows) == list(prepare(make_trace(rows), window="2:20").rows)


def test_an_existing_file_is_kept_without_force_and_replaced_with_it(
    tmp_path: Path, make_trace: MakeTrace
) -> None:
    out = tmp_path / "trace.csv"
    out.write_text("precious")
    with pytest.raises(InputError, match="--force"):
        write_trace(make_trace([TraceRow(0, 0, 1, 1)]), out)
    assert out.read_text() == "precious"
    write_trace(make_trace([TraceRow(0, 0, 1, 1)]), out, force=True)
    assert len(list(open_trace(out).rows)) == 1


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_row_that_is_refused_half_way_leaves_no_file(tmp_path: Path, suffix: str) -> None:
    def rows() -> Iterator[TraceRow]:
        yield TraceRow(0, 0, 1, 1)
        raise InputError("row 1: is wrong")

    with pytest.raises(InputError, match="row 1"):
        write_trace(Trace(rows(), Provenance("a", "table")), tmp_path / f"trace{suffix}")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line_and_no_file(
    tmp_path: Path, make_trace: MakeTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(IncompleteRunError, match="No space left"):
        write_trace(make_trace([TraceRow(0, 0, 1, 1)]), tmp_path / "trace.csv")
    assert list(tmp_path.iterdir()) == []


def test_another_suffix_and_a_missing_directory_are_refused(tmp_path: Path, make_trace: MakeTrace) -> None:
    with pytest.raises(InputError, match=r"\.parquet or \.csv"):
        write_trace(make_trace([]), tmp_path / "trace.xlsx")
    with pytest.raises(InputError, match="does not exist"):
        write_trace(make_trace([]), tmp_path / "none" / "trace.csv")
