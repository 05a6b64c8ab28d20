"""Azure LLM inference traces of 2023 (Splitwise, ISCA '24) and 2024.

2023: naive stamps with 7 fraction digits; 2024: 6 digits or none, and a UTC offset. Trace time counts from
the first row.
"""

from __future__ import annotations

from traces.formats.base import Format, Parse, Source
from traces.formats.containers import Record
from traces.schema import TraceRow


def _parser(source: Source) -> Parse:
    origin: int | None = None

    def parse(record: Record) -> TraceRow:
        nonlocal origin
        stamp = record.time("TIMESTAMP", "iso")
        origin = stamp if origin is None else origin
        return TraceRow(
            source_row=record.source_row,
            arrival_ns=stamp - origin,
            prompt_tokens=record.count("ContextTokens"),
            output_tokens=record.count("GeneratedTokens"),
        )

    return parse


AZURE = Format(
    name="azure",
    about="Azure LLM inference trace CSV, 2023 and 2024",
    required=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    parser=_parser,
)
