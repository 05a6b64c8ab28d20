"""Vidur, splitwise-sim, Qwen-Bailian and RAGPulse: every quirk, with rows of our own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tinyllm.errors import InputError
from traces.info import summarize
from traces.load import open_trace
from traces.schema import TraceRow

Load = Callable[..., list[TraceRow]]

S = 10**9
SPLITWISE = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"


def _json_lines(*records: dict[str, object]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def _chat(chat: int, parent: int, at: float, prompt: int, ids: list[int], turn: int = 1) -> dict[str, object]:
    return {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": at,
        "input_length": prompt,
        "output_length": 5,
        "type": "text",
        "turn": turn,
        "hash_ids": ids,
    }


def _rag(at: str, session: str | None = "s") -> dict[str, object]:
    parts = {"sys_prompt": [8325, 8326], "passages_ids": [6123], "history": [], "user_input": [23648]}
    record = {"timestamp": at, "input_length": 3861, "output_length": 127, "hash_ids": parts}
    return record | ({"session_id": session} if session else {})


def test_vidur_seconds_are_exact_and_counts_may_be_written_as_floats(load: Load) -> None:
    rows = load("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396.0,109\n")
    assert rows == [TraceRow(0, 0, 374, 44), TraceRow(1, 4_314_579_000, 396, 109)]


def test_a_vidur_table_without_times_is_no_trace(load: Load) -> None:
    with pytest.raises(InputError, match="of no known format"):
        load("num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.85\n")


def test_the_real_vidur_file_is_the_real_azure_file(real_trace: Callable[[str], Path]) -> None:
    vidur = summarize(open_trace(real_trace("vidur/splitwise_conv.csv.gz")))
    azure = summarize(open_trace(real_trace("azure2023/AzureLLMInferenceTrace_conv.csv")))
    assert (vidur.rows, vidur.prompt, vidur.output) == (azure.rows, azure.prompt, azure.output)
    assert vidur.span_s == pytest.approx(azure.span_s, abs=1e-5)
    assert vidur.provenance.format == "vidur"


def test_splitwise_sim_starts_at_zero_and_keeps_the_application(load: Load) -> None:
    rows = load(SPLITWISE + "0,2,0,0,1,374,44\n1,2,7,0.5,1,396,109\n")
    assert rows == [TraceRow(0, 0, 374, 44, "0"), TraceRow(1, S // 2, 396, 109, "7")]


def test_splitwise_sim_rows_of_several_requests_are_refused(load: Load) -> None:
    with pytest.raises(InputError, match=r"row 0 \(line 2\): batch_size is 2"):
        load(SPLITWISE + "0,2,0,0,2,374,44\n")


def test_bailian_chats_form_sessions_and_carry_16_token_blocks(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        _json_lines(
            _chat(159, -1, 61.114, 17, [1, 2]),
            _chat(160, -1, 61.2, 16, [3]),
            _chat(171, 159, 62.5, 40, [1, 4, 5], turn=2),
            _chat(172, 171, 63, 48, [1, 4, 6], turn=3),
            _chat(173, 55, 64, 1, [9], turn=4),
        )
    )
    trace = open_trace(path)
    assert (trace.provenance.format, trace.prefix_block_size) == ("bailian", 16)
    rows = list(trace.rows)
    assert rows[0] == TraceRow(0, 61_114_000_000, 17, 5, "text", "159", prefix_ids=(1, 2))
    assert [row.session for row in rows] == ["159", "160", "159", "159", "55"]


def test_bailian_ids_that_are_not_one_a_block_are_refused(load: Load) -> None:
    text = _json_lines(_chat(1, -1, 0, 17, [1]))
    with pytest.raises(InputError, match=r"row 0 \(line 1\): has 1 prefix ids for 17 prompt tokens.*need 2"):
        load(text, "trace.jsonl")


def test_a_bailian_chat_that_follows_itself_is_refused(load: Load) -> None:
    with pytest.raises(InputError, match=r"row 0 \(line 1\): parent_chat_id is 1"):
        load(_json_lines(_chat(1, 1, 0, 16, [1])), "trace.jsonl")


def test_ragpulse_has_seconds_as_text_parts_that_are_no_prefixes_and_an_empty_last_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(_json_lines(_rag("27", "a"), _rag("29", None)) + "\n")
    trace = open_trace(path)
    assert (trace.provenance.format, trace.prefix_block_size) == ("ragpulse", None)
    assert list(trace.rows) == [
        TraceRow(0, 27 * S, 3861, 127, session="a"),
        TraceRow(1, 29 * S, 3861, 127),
    ]


def test_the_two_weeks_of_ragpulse_need_an_order(load: Load) -> None:
    text = _json_lines(_rag("604451"), _rag("604453"), _rag("0"), _rag("2"))
    with pytest.raises(InputError, match=r"row 2 \(line 3\): the clock steps back by 604453 s"):
        load(text, "trace.jsonl")
    joined = load(text, "trace.jsonl", order="segment")
    assert [row.arrival_ns // S for row in joined] == [604_451, 604_453, 604_453, 604_455]
    assert [row.source_row for row in load(text, "trace.jsonl", order="sort")] == [2, 3, 0, 1]


@pytest.mark.parametrize("parts", [None, [1, 2], {"history": 5}])
def test_ragpulse_parts_that_are_no_object_of_lists_are_refused(load: Load, parts: object) -> None:
    with pytest.raises(InputError, match=r"row 1 \(line 2\): hash_ids is not an object of lists"):
        load(_json_lines(_rag("27"), _rag("28") | {"hash_ids": parts}), "trace.jsonl")


def test_mooncake_is_still_detected_beside_the_formats_that_have_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(_json_lines({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}))
    assert open_trace(path).provenance.format == "mooncake"
