"""splitwise-sim (Patel et al., ISCA '24): request CSV of the simulator, seconds; the first arrival can be 0."""

from __future__ import annotations

from traces.formats.base import Format, stateless
from traces.formats.cells import CellError
from traces.formats.containers import Record
from traces.schema import TraceRow


def _parse(record: Record) -> TraceRow:
    if (batch := record.count("batch_size")) != 1:
        raise CellError(f"batch_size is {batch}; a row of a trace is one request, batch_size 1")
    return TraceRow(
        source_row=record.source_row,
        arrival_ns=record.time("arrival_timestamp", "s"),
        prompt_tokens=record.count("prompt_size"),
        output_tokens=record.count("token_size"),
        tenant=record.text("application_id"),
    )


SPLITWISE_SIM = Format(
    name="splitwise-sim",
    about="splitwise-sim request CSV",
    required=(
        "request_id",
        "request_type",
        "application_id",
        "arrival_timestamp",
        "batch_size",
        "prompt_size",
        "token_size",
    ),
    parser=stateless(_parse),
)
