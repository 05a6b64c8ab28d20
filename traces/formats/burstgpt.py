"""BurstGPT (Wang et al., KDD '25, doi 10.1145/3711896.3737413): files 1, 2 and 3.

Times are seconds from midnight of the first day; rows of one second are in true order. File 3 has two more
columns in the middle, so columns are found by name. There the prompt already holds the conversation so far,
and `Elapsed time` is that of the whole response.
"""

from __future__ import annotations

from traces.formats.base import Format, stateless
from traces.formats.containers import Record
from traces.schema import TraceRow


def _parse(record: Record) -> TraceRow:
    return TraceRow(
        source_row=record.source_row,
        arrival_ns=record.time("Timestamp", "s"),
        prompt_tokens=record.count("Request tokens"),
        output_tokens=record.count("Response tokens"),
        tenant=record.text("Model"),
        session=record.text("Session ID"),
        elapsed_ns=record.time("Elapsed time", "s") if record.text("Elapsed time") else None,
    )


def _parse_sample(record: Record) -> TraceRow:
    return TraceRow(
        source_row=record.source_row,
        arrival_ns=record.time("arrival_s", "s"),
        prompt_tokens=record.count("input_length"),
        output_tokens=record.count("output_length"),
        session=record.text("session8"),
    )


BURSTGPT = Format(
    name="burstgpt",
    about="BurstGPT CSV, files 1, 2 and 3",
    required=("Timestamp", "Model", "Request tokens", "Response tokens", "Log Type"),
    parser=stateless(_parse),
)

BURSTGPT_SAMPLE = Format(
    name="burstgpt-sample",
    about="conversation excerpt of BurstGPT file 3 with re-based seconds and cut session ids",
    required=("arrival_s", "input_length", "output_length", "session8"),
    parser=stateless(_parse_sample),
)
