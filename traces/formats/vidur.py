"""Vidur (Agrawal et al., MLSys '24): processed traces, CSV, seconds from the first row.

Its `*_stats_*` tables have no arrival times: they are tables of lengths, not traces, and are not of this format.
"""

from __future__ import annotations

from traces.formats.base import Format, stateless
from traces.formats.containers import Record
from traces.schema import TraceRow


def _parse(record: Record) -> TraceRow:
    return TraceRow(
        source_row=record.source_row,
        arrival_ns=record.time("arrived_at", "s"),
        prompt_tokens=record.count("num_prefill_tokens"),
        output_tokens=record.count("num_decode_tokens"),
    )


VIDUR = Format(
    name="vidur",
    about="Vidur processed trace CSV with arrival times",
    required=("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    parser=stateless(_parse),
)
