"""The clock of a trace never steps back: what to do with a file whose clock does."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, Literal, get_args

from tinyllm.errors import InputError
from traces.formats.containers import locate
from traces.schema import Provenance, TraceRow
from traces.spool import Spool

Order = Literal["error", "segment", "sort"]
ORDERS: Final = get_args(Order)

RUN_ROWS: Final = 16_384
"""Rows that are sorted in memory, before the sorted runs are merged."""

MOST_WARNINGS: Final = 5
"""Segments that are named; a clock that is not in order at all would name every second row."""

Located = tuple[int | None, int, TraceRow]
"""(line in the file or None, number of the data row, the row)."""


def in_order(
    located: Iterator[Located], order: Order, path: Path, provenance: Provenance
) -> Iterator[TraceRow]:
    """Rows whose arrivals never step back; rows of one time stamp keep their file order in every mode.

    * `error`: a step back raises `InputError` naming the row.
    * `segment`: the file holds recordings end to end; the first row after a step back arrives together with
      the last row before it, and the gaps inside each segment stay as they are.
    * `sort`: a stable sort by arrival, over runs in a temporary file.
    """
    if order == "sort":
        return _sorted(located)
    if order == "segment":
        return _joined(located, provenance)
    return _checked(located, path)


def _checked(located: Iterator[Located], path: Path) -> Iterator[TraceRow]:
    last = None
    for line, number, row in located:
        if last is not None and row.arrival_ns < last:
            back_s = (last - row.arrival_ns) / 1e9
            raise InputError(
                f"{locate(path, number, line)}: the clock steps back by {back_s:g} s; "
                "use --order segment (recordings end to end) or --order sort"
            )
        last = row.arrival_ns
        yield row


def _joined(located: Iterator[Located], provenance: Provenance) -> Iterator[TraceRow]:
    offset, last, steps = 0, None, 0
    for _, number, row in located:
        if last is not None and row.arrival_ns + offset < last:
            offset = last - row.arrival_ns
            steps += 1
            if steps <= MOST_WARNINGS:
                provenance.warnings.append(
                    f"the clock steps back at row {number}: a new segment begins there"
                )
        last = row.arrival_ns + offset
        yield row._replace(arrival_ns=last)
    if steps > MOST_WARNINGS:
        provenance.warnings.append(
            f"the clock steps back {steps:,} times in all: the file may be no recordings end to end; "
            "see what --order sort makes of it"
        )


def _sorted(located: Iterator[Located]) -> Iterator[TraceRow]:
    rows = (row for _, _, row in located)
    with Spool() as spool:
        runs = []
        while run := sorted(islice(rows, RUN_ROWS), key=_arrival):
            runs.append(spool.store(run))
        # Stamps relative to the first row are negative where a later row is earlier.
        offset = min((run.first.arrival_ns for run in runs if run.first), default=0)
        for row in heapq.merge(*runs, key=_arrival):
            yield row._replace(arrival_ns=row.arrival_ns - offset) if offset < 0 else row


def _arrival(row: TraceRow) -> int:
    return row.arrival_ns
