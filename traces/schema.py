"""The trace schema: one arrival a row, streamed, with the provenance of everything that was done to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class TraceRow(NamedTuple):
    """One arrival of a trace.

    Attributes:
        source_row: number of the data row in its source, from 0 (header and blank lines not counted).
        arrival_ns: arrival time in integer nanoseconds; rows of a trace never step back in time.
        prompt_tokens: tokens of the prompt (in sessions: the history included).
        output_tokens: tokens that were generated.
        tenant: who sent it (BurstGPT: the model column), or None.
        session: conversation id, or None.
        priority: smaller is more urgent.
        prefix_ids: ids of the prompt's prefix blocks, `ceil(prompt_tokens / Trace.prefix_block_size)` of
            them, the last may be partial; equal id = equal block content *and* equal prefix. None where the
            trace has none.
        elapsed_ns: from the arrival to the end of the response in the traced service, or None.
    """

    source_row: int
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    tenant: str | None = None
    session: str | None = None
    priority: int = 0
    prefix_ids: tuple[int, ...] | None = None
    elapsed_ns: int | None = None


@dataclass
class Provenance:
    """Where a trace comes from and what was done to it; the counters fill up while rows are consumed.

    `rows_in == rows_out + dropped.total()` once the stream is exhausted.
    """

    source: str
    format: str
    sha256: str | None = None
    transforms: list[dict[str, Any]] = field(default_factory=list)
    rows_in: int = 0
    rows_out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)


@dataclass
class Trace:
    """A stream of rows (consumed once, in file order) and its provenance."""

    rows: Iterator[TraceRow]
    provenance: Provenance
    prefix_block_size: int | None = None
