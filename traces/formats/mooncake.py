"""Mooncake (Qin et al., FAST '25): JSON lines, milliseconds, ids of 512-token prefix blocks."""

from __future__ import annotations

from typing import Final

from traces.formats.base import Format, check_id_count, stateless
from traces.formats.containers import Record
from traces.schema import TraceRow

BLOCK_TOKENS: Final = 512


def _parse(record: Record) -> TraceRow:
    prompt_tokens = record.count("input_length")
    prefix_ids = record.ids("hash_ids")
    check_id_count(prefix_ids, prompt_tokens, BLOCK_TOKENS)
    return TraceRow(
        source_row=record.source_row,
        arrival_ns=record.time("timestamp", "ms"),
        prompt_tokens=prompt_tokens,
        output_tokens=record.count("output_length"),
        prefix_ids=prefix_ids,
    )


MOONCAKE = Format(
    name="mooncake",
    about="Mooncake JSON lines with 512-token prefix blocks",
    required=("timestamp", "input_length", "output_length", "hash_ids"),
    parser=stateless(_parse),
    containers=("jsonl",),
    prefix_block_size=lambda source: BLOCK_TOKENS,
)
