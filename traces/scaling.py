"""Transforms of a trace's scale: re-basing, speed-up, compression to a target rate, shorter lengths.

Arrivals are scaled in exact rational arithmetic and rounded half up to whole nanoseconds: order and ties are
kept, and so is the CV of the gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from tinyllm.errors import InputError
from traces.formats.cells import INT64_MAX
from traces.schema import Trace, TraceRow
from traces.spool import Spool
from traces.transforms import derive

_ROUNDED = Fraction(1, 10**6)
"""A scale such as 1/3 has no decimal: a block this close to a whole number of tokens is meant to be it."""


def rebase(trace: Trace) -> Trace:
    """Shift the clock so that the first row arrives at 0."""
    entry: dict[str, Any] = {"name": "rebase", "origin_ns": None}
    return derive(trace, _rebase(trace, entry), entry)


def _rebase(trace: Trace, entry: dict[str, Any]) -> Iterator[TraceRow]:
    origin = None
    for row in trace.rows:
        if origin is None:
            origin = entry["origin_ns"] = row.arrival_ns
        yield row._replace(arrival_ns=row.arrival_ns - origin) if origin else row


def speedup(trace: Trace, factor: float) -> Trace:
    """Divide every arrival by `factor`: larger is faster, the mean rate is multiplied by it.

    Raises:
        InputError: the factor is not a finite number above 0.
    """
    exact = _positive("--speedup", factor)
    return derive(trace, _scaled(trace.rows, 1 / exact, "--speedup"), {"name": "speedup", "factor": factor})


def target_rate(trace: Trace, rate: float) -> Trace:
    """Scale the clock so that rows / span (first to last arrival) is `rate` a second; `inf`: all arrive at 0.

    The span is known at the end only: before the first row comes out, all are read into a temporary file.

    Raises:
        InputError: the rate is not a number above 0; the rows (when consumed) span no time.
    """
    if rate == math.inf:
        rows = (row._replace(arrival_ns=0) for row in trace.rows)
        return derive(trace, rows, {"name": "target_rate", "rate": "inf", "speedup": None})
    exact = _positive("--rate", rate)
    entry: dict[str, Any] = {"name": "target_rate", "rate": rate, "speedup": None}
    return derive(trace, _at_rate(trace, exact, entry), entry)


def _at_rate(trace: Trace, rate: Fraction, entry: dict[str, Any]) -> Iterator[TraceRow]:
    with Spool() as spool:
        rows = spool.store(trace.rows)
        if rows.first is None or rows.last is None:
            return
        span_ns = rows.last.arrival_ns - rows.first.arrival_ns
        if span_ns == 0:
            raise InputError(
                f"--rate: the {rows.num_rows} rows arrive at one time, which no factor turns into a rate"
            )
        scale = rows.num_rows * 1_000_000_000 / (rate * span_ns)
        entry["speedup"] = float(1 / scale)
        yield from _scaled(iter(rows), scale, "--rate")


def length_scale(trace: Trace, scale: float, block_size: int) -> Trace:
    """Multiply every length by `scale`, rounding up: a small machine replays the shape of a large trace.

    A prefix id then stands for its block's tokens times `scale`, so who shares what stays the same.

    Args:
        block_size: of the KV cache; the scaled prefix block must be a multiple of it.

    Raises:
        InputError: the scale is not a finite number above 0, or does not suit the trace's prefix blocks; a
            block size below 1.
    """
    exact = _positive("--length-scale", scale)
    if block_size < 1:
        raise InputError(f"--block-size: {block_size} is not a number of tokens; give 1 or more")
    prefix_block_size = trace.prefix_block_size
    if prefix_block_size is not None:
        scaled = prefix_block_size * exact
        if abs(scaled - round(scaled)) < _ROUNDED:
            exact = Fraction(round(scaled), prefix_block_size)
            scaled = prefix_block_size * exact
        if not scaled or scaled.denominator != 1 or scaled.numerator % block_size:
            nearest = max(1, round(scaled / block_size)) * block_size
            raise InputError(
                f"--length-scale {scale:g}: turns the trace's prefix blocks of {prefix_block_size} tokens into "
                f"{float(scaled):g}, which is no multiple of --block-size {block_size}; the nearest scale that "
                f"works is {nearest / prefix_block_size:.12g}"
            )
        trace = replace(trace, prefix_block_size=scaled.numerator)
    entry = {"name": "length_scale", "scale": scale}
    return derive(trace, _scaled_lengths(trace.rows, exact), entry)


def _scaled_lengths(rows: Iterator[TraceRow], scale: Fraction) -> Iterator[TraceRow]:
    for row in rows:
        yield row._replace(
            prompt_tokens=math.ceil(row.prompt_tokens * scale),
            output_tokens=math.ceil(row.output_tokens * scale),
        )


def _positive(option: str, value: float) -> Fraction:
    if not math.isfinite(value) or value <= 0:
        raise InputError(f"{option}: {value:g} is not a finite number above 0; give for instance {option} 2")
    # The decimal that the user wrote (0.1), not the binary float next to it.
    return Fraction(repr(float(value)))


def _scaled(rows: Iterator[TraceRow], scale: Fraction, option: str) -> Iterator[TraceRow]:
    numerator, denominator = scale.numerator, scale.denominator
    for row in rows:
        arrival_ns = (2 * row.arrival_ns * numerator + denominator) // (2 * denominator)
        if arrival_ns > INT64_MAX:
            raise InputError(
                f"{option}: row {row.source_row} would arrive after 292 years; give a larger number"
            )
        # The whole clock is scaled, so that the time from a response to the next turn is, too.
        elapsed_ns = None if row.elapsed_ns is None else math.floor(row.elapsed_ns * scale)
        yield row._replace(arrival_ns=arrival_ns, elapsed_ns=elapsed_ns)
