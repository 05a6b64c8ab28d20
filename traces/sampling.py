"""Transforms that change how many requests there are: thinning by whole sessions, superposing shifted copies."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Iterator
from typing import Any

from tinyllm.errors import InputError
from traces.formats.cells import INT64_MAX, CellError, parse_number, parse_time
from traces.schema import Trace, TraceRow
from traces.spool import Spool, Stored
from traces.transforms import derive, drop

MOST_COPIES = 1_000


def thin(trace: Trace, share: float, seed: int) -> Trace:
    """Keep about `share` of the sessions, each whole; a row without a session is one of its own.

    Who stays is a hash of seed and session: it depends on neither the order of the rows nor on what else the
    trace holds, and a larger share keeps all that a smaller one keeps. Thinning moves the CV towards 1.

    Raises:
        InputError: the share is not in (0, 1].
    """
    if not 0 < share <= 1:
        raise InputError(f"--thin: {share:g} is not a share in (0, 1]; give for instance --thin 0.5")
    return derive(trace, _thin(trace, share, seed), {"name": "thin", "share": share, "seed": seed})


def _thin(trace: Trace, share: float, seed: int) -> Iterator[TraceRow]:
    bound = math.ceil(share * 2**64)
    for row in trace.rows:
        key = f"row {row.source_row}" if row.session is None else f"session {row.session}"
        digest = hashlib.blake2b(f"{seed} {key}".encode(), digest_size=8).digest()
        if int.from_bytes(digest) < bound:
            yield row
        else:
            drop(trace.provenance, "thinned")


def parse_copies(text: str) -> tuple[int, int]:
    """`N:S` to (number of copies, shift in nanoseconds).

    Raises:
        InputError: not of this form.
    """
    copies, colon, shift = text.partition(":")
    try:
        if not colon:
            raise CellError("has no colon")
        number = parse_number(copies)
        if number != int(number):
            raise CellError("is not whole")
        return int(number), parse_time(shift, "s")
    except CellError:
        raise InputError(
            f"--superpose: {text!r} is not COPIES:SECONDS; write for instance 3:60, three copies a minute apart"
        ) from None


def superpose(trace: Trace, copies: int, shift_ns: int) -> Trace:
    """`copies` of the trace over each other, each `shift_ns` after the one before: more load, flatter bursts.

    Copies share nothing: sessions and prefix ids are renamed per copy (`chat`, `chat#1`, …; `id · copies +
    copy`). Source rows stay unique: copy c numbers its rows from c times the entry's `stride`. Rows of one
    time keep the order of their copies. Before the first row comes out, all are read into a temporary file;
    the rows that are added count as rows in.

    Raises:
        InputError: fewer than 2 copies, more than 1,000, or a shift below 1 ns; (when consumed) ids or times
            that 64 bits cannot hold.
    """
    if not 2 <= copies <= MOST_COPIES:
        raise InputError(f"--superpose: {copies} copies; give 2 to {MOST_COPIES:,}")
    if shift_ns < 1:
        raise InputError(
            "--superpose: copies that are not shifted only multiply bursts; give seconds above 0"
        )
    entry: dict[str, Any] = {"name": "superpose", "copies": copies, "shift_ns": shift_ns}
    return derive(trace, _superpose(trace, copies, shift_ns, entry), entry)


def _superpose(trace: Trace, copies: int, shift_ns: int, entry: dict[str, Any]) -> Iterator[TraceRow]:
    largest = _Largest()
    with Spool() as spool:
        rows = spool.store(largest.watch(trace.rows))
        if rows.last is None:
            return
        stride = 1 + largest.source_row
        entry |= {"stride": stride, "rows_added": (copies - 1) * rows.num_rows}
        last_ns = rows.last.arrival_ns + copies * shift_ns
        if max(last_ns, copies * stride, (largest.prefix_id + 1) * copies) > INT64_MAX:
            raise InputError("--superpose: 64 bits cannot hold the times or prefix ids of so many copies")
        trace.provenance.rows_in += entry["rows_added"]
        trace.provenance.rows_out += entry["rows_added"]
        shifted = (_copy(rows, copy, copies, shift_ns, stride) for copy in range(copies))
        # Rows of one time come in the order of these arguments.
        yield from heapq.merge(*shifted, key=lambda row: row.arrival_ns)


class _Largest:
    """The largest numbers of the rows that pass."""

    def __init__(self) -> None:
        self.source_row = self.prefix_id = 0

    def watch(self, rows: Iterator[TraceRow]) -> Iterator[TraceRow]:
        for row in rows:
            self.source_row = max(self.source_row, row.source_row)
            if row.prefix_ids:
                self.prefix_id = max(self.prefix_id, *map(abs, row.prefix_ids))
            yield row


def _copy(rows: Stored, copy: int, copies: int, shift_ns: int, stride: int) -> Iterator[TraceRow]:
    for row in rows:
        yield row._replace(
            source_row=row.source_row + copy * stride,
            arrival_ns=row.arrival_ns + copy * shift_ns,
            session=row.session if copy == 0 or row.session is None else f"{row.session}#{copy}",
            prefix_ids=None
            if row.prefix_ids is None
            else tuple(block_id * copies + copy for block_id in row.prefix_ids),
        )
