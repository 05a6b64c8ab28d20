"""RAGPulse (arXiv 2511.12979): JSON lines, whole seconds as text, the parts of each prompt as an object of lists.

The ids name parts (system prompt, passages, history …) of any length, wherever they stand in the prompt: they
are no prefix blocks and the rows have none. Two weeks lie end to end in one file; `order` says what then.
"""

from __future__ import annotations

from traces.formats.base import Format, stateless
from traces.formats.cells import CellError
from traces.formats.containers import Head, Record
from traces.schema import TraceRow


def _parse(record: Record) -> TraceRow:
    parts = record.cells.get("hash_ids")
    if not isinstance(parts, dict) or not all(isinstance(ids, list) for ids in parts.values()):
        raise CellError("hash_ids is not an object of lists")
    return TraceRow(
        source_row=record.source_row,
        arrival_ns=record.time("timestamp", "s"),
        prompt_tokens=record.count("input_length"),
        output_tokens=record.count("output_length"),
        session=record.text("session_id"),
    )


def _has_parts(head: Head) -> bool:
    return isinstance(head.first.get("hash_ids"), dict)


RAGPULSE = Format(
    name="ragpulse",
    about="RAGPulse JSON lines",
    required=("timestamp", "input_length", "output_length", "hash_ids"),
    parser=stateless(_parse),
    containers=("jsonl",),
    telltale=_has_parts,
)
