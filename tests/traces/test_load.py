from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tinyllm.errors import InputError
from traces.formats import FORMATS
from traces.load import open_trace
from traces.order import MOST_WARNINGS
from traces.schema import TraceRow

Load = Callable[..., list[TraceRow]]

HEADER = "arrival_s,input_length,output_length,session8\n"


def _rows(*arrivals: int) -> str:
    return HEADER + "".join(f"{arrival},10,{index + 1},\n" for index, arrival in enumerate(arrivals))


def test_a_gzipped_file_loads_like_the_plain_one_and_is_hashed_as_it_lies(tmp_path: Path) -> None:
    text = _rows(0, 4).encode()
    (tmp_path / "a.csv").write_bytes(text)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text))
    plain, packed = open_trace(tmp_path / "a.csv"), open_trace(tmp_path / "a.csv.gz")
    assert list(plain.rows) == list(packed.rows)
    assert plain.provenance.sha256 == hashlib.sha256(text).hexdigest()
    assert packed.provenance.sha256 == hashlib.sha256((tmp_path / "a.csv.gz").read_bytes()).hexdigest()


def test_rows_are_counted_while_they_are_consumed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(_rows(0, 4, 9))
    trace = open_trace(tmp_path / "a.csv")
    next(trace.rows)
    assert (trace.provenance.rows_in, trace.provenance.rows_out) == (1, 1)
    assert len(list(trace.rows)) == 2
    assert (trace.provenance.rows_in, trace.provenance.rows_out) == (3, 3)


def test_a_byte_order_mark_and_spaces_in_the_header_do_no_harm(load: Load) -> None:
    assert len(load("\ufeff" + HEADER.replace(",", " , ") + "0,1,1,\n")) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (HEADER.encode(), "no data row"),
        (b"a,b,c\n1,2,3\n", "no known format"),
        (b"a,a\n1,2\n", "'a' twice"),
        (HEADER.encode() + b"0,1\n", r"row 0 \(line 2\): has 2 cells, the header 4"),
        (HEADER.encode() + b"0,1,1,\xff\n", "not UTF-8"),
        (gzip.compress(HEADER.encode() * 9, mtime=0)[:-12], "gzip stream is broken"),
        (b"PAR1 this is not Parquet", "not a readable Parquet"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_naming_it(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "wrong.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as error:
        list(open_trace(path).rows)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        open_trace(tmp_path / "none.csv")
    with pytest.raises(InputError, match="cannot be read"):
        open_trace(tmp_path)


def test_the_message_of_an_unknown_header_lists_the_formats(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    with pytest.raises(InputError) as error:
        open_trace(tmp_path / "a.csv")
    assert all(name in str(error.value) for name in FORMATS)


def test_a_named_format_must_be_known_and_fit_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(_rows(0))
    with pytest.raises(InputError, match="unknown format 'azur'"):
        open_trace(tmp_path / "a.csv", format="azur")
    with pytest.raises(InputError, match="lacks 'TIMESTAMP'"):
        open_trace(tmp_path / "a.csv", format="azure")
    with pytest.raises(InputError, match="is csv, but format mooncake is jsonl"):
        open_trace(tmp_path / "a.csv", format="mooncake")


def test_a_clock_that_steps_back_is_an_error_naming_the_row(load: Load) -> None:
    with pytest.raises(InputError, match=r"row 2 \(line 4\): the clock steps back by 3 s.*--order segment"):
        load(_rows(0, 5, 2))


def test_segments_are_joined_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(_rows(10, 15, 2, 6, 1, 1))
    trace = open_trace(tmp_path / "a.csv", order="segment")
    rows = list(trace.rows)
    assert [row.arrival_ns // 10**9 for row in rows] == [10, 15, 15, 19, 19, 19]
    assert [row.source_row for row in rows] == [0, 1, 2, 3, 4, 5]
    assert len(trace.provenance.warnings) == 2


def test_a_clock_without_any_order_is_warned_of_once_and_not_at_every_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(_rows(*range(40, 0, -1)))
    trace = open_trace(tmp_path / "a.csv", order="segment")
    assert {row.arrival_ns for row in trace.rows} == {40 * 10**9}
    assert len(trace.provenance.warnings) == MOST_WARNINGS + 1
    assert "steps back 39 times in all" in trace.provenance.warnings[-1]


def test_sorting_keeps_the_file_order_of_ties(load: Load) -> None:
    rows = load(_rows(5, 2, 5, 2), order="sort")
    assert [row.source_row for row in rows] == [1, 3, 0, 2]


def test_sorted_stamps_relative_to_the_first_row_begin_at_zero(load: Load) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:05,1,1\n2024-05-12 00:00:03,1,1\n"
    assert [row.arrival_ns for row in load(text, order="sort")] == [0, 2 * 10**9]


def test_an_unknown_order_is_refused(load: Load) -> None:
    with pytest.raises(InputError, match="unknown order"):
        load(_rows(0), order="backwards")
