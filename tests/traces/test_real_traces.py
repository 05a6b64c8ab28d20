"""The measured table that came with the real traces, and what must hold on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from traces.export import write_trace
from traces.info import TraceSummary, summarize
from traces.load import open_trace
from traces.prepare import prepare
from traces.transforms import window

RealTrace = Callable[[str], Path]
S = 10**9

# name: rows, span s, rate, CV, prompt mean/median/p95, output mean/median/p95
MEASURED = {
    "burstgpt/burstgpt_1_head30.csv": (30, 2288, 0.0131, 0.83, (591, 490, 1487), (343, 284, 606)),
    "burstgpt/burstgpt_3_conv_head626.csv": (626, 51936, 0.0121, 3.19, (646, 365, 1842), (215, 114, 761)),
    "azure2023/AzureLLMInferenceTrace_conv.csv": (19366, 3502, 5.5304, 1.09, (1155, 1020, 4083), (211, 129, 451)),
    "azure2023/windows/conv_t600_900.csv": (1557, 300, 5.1955, 1.01, (1221, 1058, 4081), (243, 169, 470)),
    "azure2023/windows/code_busiest300s.csv": (1379, 300, 4.5987, 21.63, (1917, 1375, 6484), (29, 13, 89)),
    "mooncake/conversation_trace.jsonl.gz": (12031, 3537, 3.4015, 3.03, (12035, 6909, 39550), (343, 350, 698)),
    "mooncake/windows/conversation_first120s.jsonl": (
        339, 117, 2.8974, 2.77, (14336, 8974, 49907), (370, 385, 686),
    ),
}  # fmt: skip


@cache
def _summary(path: Path) -> TraceSummary:
    return summarize(open_trace(path), block_size=16)


@pytest.mark.parametrize("name", MEASURED)
def test_the_summary_reproduces_the_measured_table(real_trace: RealTrace, name: str) -> None:
    summary = _summary(real_trace(name))
    rows, span, rate, cv, prompt, output = MEASURED[name]
    assert summary.rows == rows
    assert summary.span_s == pytest.approx(span, abs=0.5)
    assert summary.rate == pytest.approx(rate, abs=5e-5)
    assert summary.cv == pytest.approx(cv, abs=5e-3)
    for stats, expected in ((summary.prompt, prompt), (summary.output, output)):
        assert (stats.mean, stats.median, stats.p95) == pytest.approx(expected, abs=0.500001)


def test_the_index_of_dispersion_is_the_measured_one(real_trace: RealTrace) -> None:
    conversation = _summary(real_trace("azure2023/AzureLLMInferenceTrace_conv.csv"))
    assert conversation.dispersion == pytest.approx(4.0, abs=0.05)
    mooncake = _summary(real_trace("mooncake/conversation_trace.jsonl.gz"))
    assert mooncake.dispersion == pytest.approx(2.1, abs=0.05)
    assert any("1,180 distinct times for 12,031 rows" in warning for warning in mooncake.warnings)


def test_the_busy_part_of_the_burstgpt_sample_is_a_window(real_trace: RealTrace) -> None:
    summary = summarize(prepare(real_trace("burstgpt/burstgpt_3_conv_head626.csv"), window="32000:"))
    assert (summary.rows, round(summary.span_s)) == (523, 19587)
    assert summary.cv == pytest.approx(1.35, abs=5e-3)


def test_the_quiet_head_of_the_burstgpt_sample_warns(real_trace: RealTrace) -> None:
    path = real_trace("burstgpt/burstgpt_3_conv_head626.csv")
    assert any("first tenth" in text for text in summarize(open_trace(path)).warnings)
    assert any("below the later rate" in text for text in summarize(prepare(path, head=100)).warnings)


def test_a_window_of_azure_equals_the_cut_file(real_trace: RealTrace) -> None:
    whole = open_trace(real_trace("azure2023/AzureLLMInferenceTrace_conv.csv"))
    cut = list(window(whole, 600 * S, 900 * S).rows)
    file = list(open_trace(real_trace("azure2023/windows/conv_t600_900.csv")).rows)
    assert [row[2:] for row in cut] == [row[2:] for row in file]
    assert {a.arrival_ns - b.arrival_ns for a, b in zip(cut, file, strict=True)} == {cut[0].arrival_ns}
    assert cut[0].source_row == whole.provenance.dropped["before_window"]


def test_vidur_s_float_seconds_of_azure_load_as_a_declared_table(real_trace: RealTrace) -> None:
    columns = "arrival=arrived_at,prompt_tokens=num_prefill_tokens,output_tokens=num_decode_tokens"
    table = open_trace(real_trace("vidur/splitwise_conv.csv.gz"), columns=columns, unit="s")
    azure = open_trace(real_trace("azure2023/AzureLLMInferenceTrace_conv.csv"))
    assert list(table.rows) == list(azure.rows)


def test_mooncake_prefix_ids_survive_window_and_both_exports(real_trace: RealTrace, tmp_path: Path) -> None:
    cut = list(open_trace(real_trace("mooncake/windows/conversation_first120s.jsonl")).rows)
    for suffix in (".parquet", ".csv"):
        whole = open_trace(real_trace("mooncake/conversation_trace.jsonl.gz"))
        out = write_trace(window(whole, 0, 120 * S), tmp_path / f"cut{suffix}")
        loaded = open_trace(out)
        assert loaded.prefix_block_size == 512
        assert list(loaded.rows) == cut


def test_the_ideal_block_hit_rate_of_mooncake_is_the_published_one(real_trace: RealTrace) -> None:
    seen: set[int] = set()
    hits = total = 0
    for row in open_trace(real_trace("mooncake/conversation_trace.jsonl.gz")).rows:
        ids = row.prefix_ids or ()
        leading = next((index for index, block_id in enumerate(ids) if block_id not in seen), len(ids))
        hits, total = hits + leading, total + len(ids)
        seen.update(ids)
    assert hits / total == pytest.approx(0.366, abs=5e-4)


def test_the_ideal_token_hit_share_of_mooncake_in_kv_blocks_is_just_below_that_in_tokens(
    real_trace: RealTrace,
) -> None:
    summary = _summary(real_trace("mooncake/conversation_trace.jsonl.gz"))
    assert summary.prefix_hit_share == pytest.approx(0.37362, abs=1e-5)
    assert summary.block_hit_share == pytest.approx(0.37362, abs=1e-5)
    assert summary.block_hit_share < summary.prefix_hit_share


def test_one_second_of_burstgpt_keeps_its_four_rows(real_trace: RealTrace) -> None:
    rows = list(prepare(real_trace("burstgpt/burstgpt_1_same_second_4rows.csv")).rows)
    assert [row.prompt_tokens for row in rows][:3] == [266, 166, 758]
    assert len(rows) == 4
    assert {row.arrival_ns for row in rows} == {0}


def test_burstgpt_3_keeps_sessions_and_starts_at_its_first_row(real_trace: RealTrace) -> None:
    rows = list(prepare(real_trace("burstgpt/burstgpt_3_head4.csv")).rows)
    assert [row.arrival_ns // S for row in rows] == [0, 51, 82, 144]
    assert rows[0].session == "1722ac82-0a46-4bf0-aa08-89794e7a2b3f"
