"""Transforms of single gaps of a trace's clock: long silences cut short, coarse ticks spread out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice
from typing import Any, Final

import numpy as np

from tinyllm.errors import InputError
from traces.formats.cells import CellError, parse_time
from traces.schema import Trace, TraceRow
from traces.transforms import derive

DRAWS: Final = 8_192


def idle_cap(trace: Trace, cap_s: float) -> Trace:
    """Shorten every silence, before the first row too, to at most `cap_s` seconds; all other gaps stay.

    The time that was cut out and the number of cuts are noted in the entry.

    Raises:
        InputError: the cap is not a finite time above 0.
    """
    entry: dict[str, Any] = {"name": "idle_cap", "cap_s": cap_s, "gaps": 0, "cut_ns": 0}
    return derive(trace, _idle_cap(trace, _nanoseconds("--idle-cap", cap_s), entry), entry)


def _idle_cap(trace: Trace, cap_ns: int, entry: dict[str, Any]) -> Iterator[TraceRow]:
    last = cut_ns = 0
    for row in trace.rows:
        excess = row.arrival_ns - last - cap_ns
        last = row.arrival_ns
        if excess > 0:
            cut_ns += excess
            entry |= {"gaps": entry["gaps"] + 1, "cut_ns": cut_ns}
        yield row._replace(arrival_ns=last - cut_ns) if cut_ns else row


def spread_ticks(trace: Trace, tick_s: float, seed: int) -> Trace:
    """Draw the arrivals that a coarse clock stamped alike from within its tick, uniform, in file order.

    A row stamped t moves into [t, t + tick), and never past the next stamp: the order of rows stays. For
    BurstGPT the tick is 1 s, for Mooncake 3 s. Otherwise the rows of a tick act as a batch.

    Raises:
        InputError: the tick is not a finite time above 0, the seed is negative.
    """
    if seed < 0:
        raise InputError(f"--seed: {seed} is negative; give 0 or more")
    tick_ns = _nanoseconds("--spread-ticks", tick_s)
    entry = {"name": "spread_ticks", "tick_s": tick_s, "seed": seed}
    return derive(trace, _spread(trace.rows, tick_ns, seed), entry)


def _spread(rows: Iterator[TraceRow], tick_ns: int, seed: int) -> Iterator[TraceRow]:
    draws = _uniform(seed)
    held: list[TraceRow] = []
    for stamp, group in groupby(rows, key=lambda row: row.arrival_ns):
        if held:
            yield from _within(held, min(tick_ns, stamp - held[0].arrival_ns), draws)
        held = list(group)
    if held:
        yield from _within(held, tick_ns, draws)


def _within(rows: list[TraceRow], width_ns: int, draws: Iterator[float]) -> Iterator[TraceRow]:
    offsets = sorted(min(int(draw * width_ns), width_ns - 1) for draw in islice(draws, len(rows)))
    for row, offset in zip(rows, offsets, strict=True):
        yield row._replace(arrival_ns=row.arrival_ns + offset)


def _uniform(seed: int) -> Iterator[float]:
    """Endless draws from [0, 1), many at a time: a call to numpy for each row would cost most of the time."""
    rng = np.random.Generator(np.random.PCG64(seed))
    while True:
        yield from rng.random(DRAWS).tolist()


def _nanoseconds(option: str, seconds: float) -> int:
    try:
        nanoseconds = parse_time(seconds, "s")
    except CellError as error:
        raise InputError(f"{option}: {error}; give seconds, for instance {option} 60") from None
    if nanoseconds < 1:
        raise InputError(f"{option}: {seconds:g} is no time above 0; give seconds, for instance {option} 60")
    return nanoseconds
