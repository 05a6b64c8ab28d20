"""Every public format through the command: what is printed and exported accounts for each row of the file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from tinyllm.cli.trace import app
from tinyllm.errors import InputError
from traces.formats import FORMATS
from traces.load import open_trace
from traces.schema import TraceRow

BURST3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST1 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
OWN = "source_row,arrival_ns,prompt_tokens,output_tokens,tenant,session,priority,prefix_ids_16\r\n"


class Case(NamedTuple):
    """A small file, the options that it needs, and the line of rows and drops that it gives."""

    format: str
    text: str
    said: str
    options: tuple[str, ...] = ()
    rows: int = 3


CASES = {
    # A failure with a prompt, one without, and a second of two equal rows, both of which are real load.
    "BurstGPT 1": Case(
        "burstgpt",
        BURST1 + "5,ChatGPT,472,18,490,Conversation log\n5,ChatGPT,472,18,490,Conversation log\n"
        "1106,ChatGPT,0,0,0,API log\n1107,GPT-4,7,0,7,API log\n",
        "2 of 4 rows (dropped: zero_output 2)",
        rows=4,
    ),
    "BurstGPT 1, failures kept": Case(
        "burstgpt",
        BURST1 + "5,ChatGPT,472,18,490,API log\n6,ChatGPT,0,0,0,API log\n7,GPT-4,7,0,7,API log\n",
        "2 of 3 rows (dropped: empty_prompt 1)",
        ("--zero-output", "floor1"),
    ),
    "BurstGPT 3": Case(
        "burstgpt",
        BURST3 + "19440110.0,1722ac82-0a46-4bf0-aa08-89794e7a2b3f,43,GPT-4,906.0,446,1352,Conversation log\n"
        "19440161.0,,2,ChatGPT,36,29,65,API log\n19440161.0,,0,ChatGPT,36,0,36,API log\n",
        "2 of 3 rows (dropped: zero_output 1)",
    ),
    "BurstGPT excerpt": Case(
        "burstgpt-sample",
        "arrival_s,input_length,output_length,session8\n0,10,1,a\n5,20,0,a\n9,30,3,\n",
        "2 of 3 rows (dropped: zero_output 1)",
    ),
    "Azure 2023": Case(
        "azure",
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
        "2023-11-16 18:15:50.9951691,396,109\r\n2023-11-16 18:15:51.2257164,879,55",
        "2 of 3 rows (dropped: over_context 1)",
        ("--max-context", "600", "--over-context", "drop"),
    ),
    "Azure 2024": Case(
        "azure",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00.001163+00:00,10,1\n"
        "2024-05-12 00:00:01+00:00,20,2\n2024-05-12 00:00:04.500000+00:00,30,3\n",
        "1 of 3 rows (dropped: before_window 1, after_window 1)",
        ("--window", "0.5:2"),
    ),
    "Vidur": Case(
        "vidur",
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396,109\n4.545126,879,55\n",
        "1 of 3 rows (dropped: after_head 2)",
        ("--requests", "1"),
    ),
    "splitwise-sim": Case(
        "splitwise-sim",
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
        "0,2,0,0,1,374,44\n1,2,0,0.25,1,396,109\n2,2,1,0.5,1,879,0\n",
        "2 of 3 rows (dropped: zero_output 1)",
    ),
    "Qwen-Bailian": Case(
        "bailian",
        "".join(
            json.dumps(
                {
                    "chat_id": chat,
                    "parent_chat_id": parent,
                    "timestamp": at,
                    "input_length": 17,
                    "output_length": chat - 1,
                    "type": "text",
                    "turn": 1,
                    "hash_ids": [1, chat],
                }
            )
            + "\n"
            for chat, parent, at in ((1, -1, 61.114), (2, -1, 61.2), (3, 1, 62.5))
        ),
        "2 of 3 rows (dropped: zero_output 1)",
    ),
    # Two weeks end to end, then an empty line.
    "RAGPulse": Case(
        "ragpulse",
        "".join(
            json.dumps(
                {
                    "timestamp": at,
                    "input_length": 3861,
                    "output_length": 127,
                    "hash_ids": {"sys_prompt": [8325], "history": []},
                    "session_id": "s",
                }
            )
            + "\n"
            for at in ("604450", "604453", "0")
        )
        + "\n",
        "3 of 3 rows",
        ("--order", "segment"),
    ),
    "Mooncake": Case(
        "mooncake",
        "".join(
            json.dumps({"timestamp": at, "input_length": 1025, "output_length": 7, "hash_ids": [1, 2, at]})
            + "\n"
            for at in (0, 2999, 6000)
        ),
        "6 of 6 rows",
        ("--superpose", "2:1.5"),
    ),
    "a table of JSON lines": Case(
        "table",
        '{"t": 0.5, "in": 3, "out": 4}\n\n{"t": 1, "in": 3, "out": 0}\n{"t": 2e0, "in": 0, "out": 4}\n',
        "1 of 3 rows (dropped: zero_output 1, empty_prompt 1)",
        ("--columns", "arrival=t,prompt_tokens=in,output_tokens=out", "--unit", "us"),
    ),
    "our export": Case(
        "tinyllm",
        OWN + '0,0,17,4,ann,,0,"[1, 2]"\r\n7,5,3,0,,c,-1,[3]\r\n9,5,3,1,,,0,\r\n',
        "2 of 3 rows (dropped: zero_output 1)",
    ),
}


def _run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    if result.exception is not None:
        raise result.exception
    return result.output


def test_every_format_has_a_case() -> None:
    assert {case.format for case in CASES.values()} == set(FORMATS)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_rows_in_are_rows_out_and_those_dropped_by_reason(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    case = CASES[name]
    path, out = tmp_path / "trace", tmp_path / "out.parquet"
    path.write_bytes(pack(case.text.encode()))
    assert f"({case.format})" in (text := _run("info", path, *case.options))
    assert f"{case.said}\n" in "".join(line.rstrip() + "\n" for line in text.splitlines())
    assert _run("prepare", path, *case.options, "--out", out).splitlines()[0] == f"wrote {out}: {case.said}"
    exported = open_trace(out)
    (entry,) = exported.provenance.transforms
    counted = entry["from"]
    assert counted["rows_in"] == counted["rows_out"] + sum(counted["dropped"].values())
    assert len(list(exported.rows)) == counted["rows_out"]


@pytest.mark.parametrize("name", CASES)
def test_a_conversion_keeps_every_row_as_the_loader_gives_it(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    read = [each for pair in _read_options(case.options) for each in pair]
    path, out = tmp_path / "trace", tmp_path / "out.csv"
    path.write_text(case.text, newline="")
    assert f"{case.rows} of {case.rows} rows" in _run("convert", path, *read, "--out", out)
    options = {flag[2:]: value for flag, value in _read_options(case.options)}
    loaded: list[TraceRow] = list(open_trace(path, **options).rows)  # type: ignore[arg-type]
    assert list(open_trace(out).rows) == loaded


def _read_options(options: tuple[str, ...]) -> list[tuple[str, str]]:
    pairs = zip(options[::2], options[1::2], strict=True)
    return [pair for pair in pairs if pair[0] in ("--columns", "--unit", "--order")]


@pytest.mark.parametrize("cell", ["12.5", "-1"])
@pytest.mark.parametrize("position", [4, 5])
def test_a_wrong_count_among_the_eight_columns_of_burstgpt_3_is_refused_naming_the_row(
    tmp_path: Path, cell: str, position: int
) -> None:
    cells = ["19440161.0", "", "2", "ChatGPT", "36", "29", "65", "API log"]
    cells[position] = cell
    path = tmp_path / "trace.csv"
    path.write_text(CASES["BurstGPT 3"].text + ",".join(cells) + "\n")
    with pytest.raises(InputError, match=rf"trace\.csv: row 3 \(line 5\): Re\w+ tokens is {cell}"):
        _run("info", path)


def test_a_parquet_table_of_whole_milliseconds_is_read_by_its_unit(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "trace.parquet"
    pq.write_table(pa.table({"t": [0, 2_999], "in": [3, 3], "out": [4, 5]}), path)
    columns = "arrival=t,prompt_tokens=in,output_tokens=out"
    with pytest.raises(InputError, match="never guessed"):
        _run("info", path, "--columns", columns)
    assert "2.999 s, 2 distinct times" in _run("info", path, "--columns", columns, "--unit", "ms")
