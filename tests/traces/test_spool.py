"""Rows that are kept in a temporary file come back as they were, to several readers at once."""

from __future__ import annotations

import tempfile
from itertools import zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.errors import IncompleteRunError, InputError
from traces import order, spool
from traces.scaling import target_rate
from traces.schema import Provenance, Trace, TraceRow
from traces.spool import Spool


def _rows(count: int, first: int = 0) -> list[TraceRow]:
    return [TraceRow(first + i, 5 * i, i, 1, "é", None, -i, (i, -(2**60))) for i in range(count)]


@pytest.mark.parametrize("in_memory", [0, 2**20])
def test_readers_take_turns_and_each_gets_all_rows(monkeypatch: pytest.MonkeyPatch, in_memory: int) -> None:
    monkeypatch.setattr(spool, "IN_MEMORY_BYTES", in_memory)
    first, second = _rows(spool.CHUNK_ROWS * 2 + 3), _rows(7, first=999)
    with Spool() as kept:
        stored, other = kept.store(iter(first)), kept.store(second)
        assert (stored.num_rows, stored.first, stored.last) == (len(first), first[0], first[-1])
        # They step through the file together, and one is a chunk ahead of the other.
        pairs = list(zip_longest(stored, (*other, *stored)))
        assert [row for row, _ in pairs if row is not None] == first
        assert [row for _, row in pairs] == second + first
        assert all(type(row) is TraceRow for row in stored)


def test_no_rows_have_neither_first_nor_last() -> None:
    with Spool() as kept:
        stored = kept.store([])
        assert (stored.num_rows, stored.first, stored.last, list(stored)) == (0, None, None, [])


@given(st.lists(st.integers(-9, 9), max_size=40), st.integers(1, 7))
def test_sorting_over_runs_is_the_stable_sort_from_zero(arrivals: list[int], run_rows: int) -> None:
    rows = [TraceRow(index, at, 1, 1) for index, at in enumerate(arrivals)]
    located = ((None, row.source_row, row) for row in rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "RUN_ROWS", run_rows)
        found = list(order._sorted(located))
    back = min([0, *arrivals])
    expected = sorted(rows, key=lambda row: row.arrival_ns)
    assert found == [row._replace(arrival_ns=row.arrival_ns - back) for row in expected]


def test_a_full_temporary_folder_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, chunk: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spool.Stored, "append", full)
    rows = _rows(3)
    trace = Trace(iter(rows), Provenance("rows of the test", "table", rows_in=3, rows_out=3))
    with pytest.raises(IncompleteRunError, match=f"^{tempfile.gettempdir()}: .*No space left.*TMPDIR"):
        list(target_rate(trace, 2.0).rows)


def test_what_the_rows_raise_goes_through() -> None:
    def rows() -> object:
        yield TraceRow(0, 0, 1, 1)
        raise InputError("row 1: is wrong")

    with Spool() as kept, pytest.raises(InputError, match="row 1"):
        kept.store(rows())  # type: ignore[arg-type]
