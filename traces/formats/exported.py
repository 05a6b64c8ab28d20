"""Our own format: the fields of `TraceRow` as Parquet or CSV, so that export and load give equal rows.

The column of prefix ids is named for its block size (`prefix_ids_512`): a CSV file then says everything, too.
Parquet also carries the provenance in its metadata.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from tinyllm.errors import InputError
from traces.formats.base import Format, Parse, Source, check_id_count
from traces.formats.containers import Record
from traces.schema import TraceRow

PREFIX_COLUMN: Final = "prefix_ids"
METADATA_KEY: Final = b"tinyllm.trace"


def prefix_column(block_size: int | None) -> str:
    return PREFIX_COLUMN if block_size is None else f"{PREFIX_COLUMN}_{block_size}"


def _find_prefix_column(source: Source) -> tuple[str | None, int | None]:
    for name in source.head.columns:
        match = re.fullmatch(rf"{PREFIX_COLUMN}(?:_([1-9]\d{{0,8}}))?", name, re.ASCII)
        if match:
            return name, int(match[1]) if match[1] else None
    return None, None


def lineage(source: Source) -> dict[str, Any] | None:
    """The provenance that an exported Parquet file carries, None where there is none."""
    text = source.head.metadata.get(METADATA_KEY)
    try:
        return None if text is None else dict(json.loads(text))
    except (ValueError, TypeError):
        raise InputError(f"{source.path}: its provenance is not JSON; export the trace again") from None


def _parser(source: Source) -> Parse:
    column, block_size = _find_prefix_column(source)

    def parse(record: Record) -> TraceRow:
        prompt_tokens = record.count("prompt_tokens")
        has_ids = column is not None and record.cells[column] not in (None, "")
        ids = record.ids(column) if column is not None and has_ids else None
        if ids is not None and block_size is not None:
            check_id_count(ids, prompt_tokens, block_size)
        return TraceRow(
            source_row=record.count("source_row"),
            arrival_ns=record.time("arrival_ns", "ns"),
            prompt_tokens=prompt_tokens,
            output_tokens=record.count("output_tokens"),
            tenant=record.text("tenant"),
            session=record.text("session"),
            priority=record.integer("priority"),
            prefix_ids=ids,
            elapsed_ns=record.time("elapsed_ns", "ns") if record.text("elapsed_ns") else None,
        )

    return parse


EXPORTED = Format(
    name="tinyllm",
    about="a trace exported by `tinyllm trace`, Parquet or CSV",
    required=("source_row", "arrival_ns", "prompt_tokens", "output_tokens", "tenant", "session", "priority"),
    parser=_parser,
    containers=("csv", "parquet"),
    prefix_block_size=lambda source: _find_prefix_column(source)[1],
)
