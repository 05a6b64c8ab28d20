"""Every loader quirk, with rows of our own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tinyllm.errors import InputError
from traces.load import open_trace
from traces.schema import TraceRow

Load = Callable[..., list[TraceRow]]

BURST1 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"


def test_burstgpt_1_rows_keep_their_time_model_and_lengths(load: Load) -> None:
    rows = load(BURST1 + "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,0,0,0,API log\n\n")
    assert rows == [
        TraceRow(0, 5_000_000_000, 472, 18, "ChatGPT"),
        TraceRow(1, 45_000_000_000, 0, 0, "GPT-4"),
    ]


def test_burstgpt_3_is_read_by_name_and_an_empty_session_is_none(load: Load) -> None:
    rows = load(
        BURST3 + "19440110.0,1722ac82-0a46,43,GPT-4,906.0,446,1352,Conversation log\n"
        "19440161.0,,2,ChatGPT,36,29,65,API log\n"
    )
    assert rows == [
        TraceRow(0, 19_440_110 * 10**9, 906, 446, "GPT-4", "1722ac82-0a46", elapsed_ns=43 * 10**9),
        TraceRow(1, 19_440_161 * 10**9, 36, 29, "ChatGPT", elapsed_ns=2 * 10**9),
    ]


@pytest.mark.parametrize("cell", ["12.5", "-1", "", "NaN"])
def test_a_wrong_token_count_is_refused_naming_row_line_and_column(load: Load, cell: str) -> None:
    text = BURST1 + f"5,ChatGPT,472,18,490,API log\n\n6,ChatGPT,{cell},18,490,API log\n"
    with pytest.raises(InputError, match=r"trace\.csv: row 1 \(line 4\): Request tokens is"):
        load(text)


@pytest.mark.parametrize("cell", ["", "NaN", "inf", "-1"])
def test_an_arrival_that_is_no_time_is_refused_naming_the_row(load: Load, cell: str) -> None:
    with pytest.raises(InputError, match=r"row 0 \(line 2\): Timestamp is"):
        load(BURST1 + f"{cell},ChatGPT,472,18,490,API log\n")


def test_four_rows_of_one_second_keep_file_order_and_duplicates(load: Load) -> None:
    lengths = [(266, 290), (166, 212), (758, 138), (266, 290)]
    lines = "".join(f"862919,ChatGPT,{prompt},{out},0,API log\n" for prompt, out in lengths)
    rows = load(BURST1 + lines)
    assert [(row.prompt_tokens, row.output_tokens) for row in rows] == lengths
    assert [row.source_row for row in rows] == [0, 1, 2, 3]
    assert {row.arrival_ns for row in rows} == {862_919 * 10**9}


def test_azure_2023_has_seven_digits_crlf_and_no_last_newline(load: Load) -> None:
    rows = load(f"{AZURE}\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951691,396,109")
    assert rows == [TraceRow(0, 0, 374, 44), TraceRow(1, 4_314_579_100, 396, 109)]


def test_azure_2024_has_an_offset_and_stamps_without_fraction(load: Load) -> None:
    rows = load(
        f"{AZURE}\n2024-05-11 23:59:59.998837+00:00,10,1\n2024-05-12 00:00:00+00:00,20,2\n"
        "2024-05-12 00:00:00.001163+00:00,30,3\n"
    )
    assert [row.arrival_ns for row in rows] == [0, 1_163_000, 2_326_000]


def _mooncake(timestamp: object, prompt: int, ids: list[int]) -> str:
    return (
        json.dumps({"timestamp": timestamp, "input_length": prompt, "output_length": 7, "hash_ids": ids})
        + "\n"
    )


def test_mooncake_milliseconds_and_prefix_ids_are_carried(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(_mooncake(0, 512, [4]) + "\n" + _mooncake(2999, 1025, [4, 5, 9]))
    trace = open_trace(path)
    assert trace.prefix_block_size == 512
    assert list(trace.rows) == [
        TraceRow(0, 0, 512, 7, prefix_ids=(4,)),
        TraceRow(1, 2_999_000_000, 1025, 7, prefix_ids=(4, 5, 9)),
    ]


def test_mooncake_ids_that_are_not_one_a_block_are_refused_naming_the_row(load: Load) -> None:
    text = _mooncake(0, 512, [4]) + _mooncake(1, 20, [4, 5])
    with pytest.raises(InputError, match=r"row 1 \(line 2\): has 2 prefix ids for 20 prompt tokens.*need 1"):
        load(text, "trace.jsonl")


@pytest.mark.parametrize("line", ["{", "[1]", '{"timestamp": NaN}', '{"timestamp": 3}'])
def test_a_json_line_that_is_no_row_is_refused_naming_it(load: Load, line: str) -> None:
    with pytest.raises(InputError, match=r"row 1 \(line 2\)"):
        load(_mooncake(0, 512, [4]) + line + "\n", "trace.jsonl")


def test_the_burstgpt_excerpt_with_cut_sessions_is_detected(load: Load) -> None:
    rows = load("arrival_s,input_length,output_length,session8\n51,36,29,d5983bf9\n")
    assert rows == [TraceRow(0, 51_000_000_000, 36, 29, session="d5983bf9")]


def test_a_table_is_read_by_declared_columns_and_unit(load: Load) -> None:
    columns = "arrival=t,prompt_tokens=in,output_tokens=out,tenant=who,session=chat,priority=p,prefix_ids=ids"
    text = "who,t,in,out,chat,p,ids\nann,1.5,300,20,c1,-2,7 8\n,2.5,100,10,,0,7\n"
    rows = load(text, columns=columns, unit="ms", prefix_block_size=256)
    assert rows == [
        TraceRow(0, 1_500_000, 300, 20, "ann", "c1", -2, (7, 8)),
        TraceRow(1, 2_500_000, 100, 10, prefix_ids=(7,)),
    ]


COLUMNS = {"arrival": "t", "prompt_tokens": "in", "output_tokens": "out"}


@pytest.mark.parametrize(("unit", "expected"), [("s", 2 * 10**9), ("ms", 2 * 10**6), ("us", 2000), ("ns", 2)])
def test_the_declared_unit_scales_the_time(load: Load, unit: str, expected: int) -> None:
    assert load("t,in,out\n2,3,4\n", columns=COLUMNS, unit=unit)[0].arrival_ns == expected


def test_iso_times_of_a_table_count_from_its_first_row(load: Load) -> None:
    rows = load("t,in,out\n2024-01-01T00:00:00Z,3,4\n2024-01-01T00:01:00Z,3,4\n", columns=COLUMNS, unit="iso")
    assert [row.arrival_ns for row in rows] == [0, 60 * 10**9]


def test_a_parquet_table_keeps_nanosecond_stamps_exact(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    stamps = pa.array([1_700_000_000_000_000_001, 1_700_000_000_000_000_004], pa.timestamp("ns", tz="UTC"))
    pq.write_table(pa.table({"t": stamps, "in": [3, 3], "out": [4.0, 5.0]}), tmp_path / "trace.parquet")
    rows = list(open_trace(tmp_path / "trace.parquet", columns=COLUMNS, unit="iso").rows)
    assert rows == [TraceRow(0, 0, 3, 4), TraceRow(1, 3, 3, 5)]


@pytest.mark.parametrize(
    ("columns", "unit", "said"),
    [
        ("arrival=t,prompt_tokens=in,output_tokens=out", None, "never guessed"),
        ("arrival=t,prompt_tokens=in", "s", "output_tokens not declared"),
        ("arrival=t,prompt_tokens=in,output_tokens=zap", "s", "no column 'zap'"),
        ("arrival=t,prompt_tokens=in,output_tokens=out,colour=x", "s", "unknown field 'colour'"),
        ("arrival", "s", "not field=column"),
        ("arrival=t,arrival=u", "s", "given twice"),
        ("arrival=t,prompt_tokens=in,output_tokens=out,prefix_ids=out", "s", "--prefix-block-size"),
        ("arrival=t,prompt_tokens=in,output_tokens=out", "h", "unknown unit"),
    ],
)
def test_a_wrong_declaration_is_refused_at_once(
    tmp_path: Path, columns: str, unit: str | None, said: str
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("t,in,out\n2,3,4\n")
    with pytest.raises(InputError, match=said):
        open_trace(path, columns=columns, unit=unit)
