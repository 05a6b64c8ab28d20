"""From a trace file to what is replayed: every transform in one fixed order.

1. load (`format`, `columns`, `unit`, `prefix_block_size`, `order`);
2. `window`, in the file's own trace time, re-based to its start;
3. `thin` to a share of the sessions;
4. `spread_ticks`, a tick in seconds, while stamps are those of the file's clock;
5. `superpose`, as `copies:seconds`;
6. `length_scale`, for a KV cache of `block_size`;
7. rows that cannot be served: `zero_output`, empty prompts, `max_context` with `over_context`;
8. `head`: the first N of the rows that are left;
9. re-base to the first row, unless the clock has a start of its own: a window's, or a generator's, now or
   before the trace was exported;
10. `idle_cap`, in seconds of trace time: before any scaling of the clock;
11. `speedup` or `rate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinyllm.errors import InputError
from traces import clock, sampling, scaling, transforms
from traces.formats.cells import CellError, parse_time
from traces.load import open_trace
from traces.order import Order
from traces.schema import Trace, TraceRow
from traces.transforms import OverContext, ZeroOutput

Window = tuple[int, int | None]
"""[start, stop) in nanoseconds of trace time; stop None is the end of the trace."""


def parse_window(text: str) -> Window:
    """`A:B` in seconds of trace time to nanoseconds; either may be left out (`600:`, `:900`).

    Raises:
        InputError: not of this form, or not 0 <= A < B.
    """
    start, colon, stop = text.partition(":")
    try:
        if not colon:
            raise CellError("has no colon")
        parsed = (parse_time(start or "0", "s"), parse_time(stop, "s") if stop else None)
    except CellError:
        raise InputError(f"--window: {text!r} is not A:B in seconds; write for instance 600:900") from None
    if parsed[1] is not None and parsed[1] <= parsed[0]:
        raise InputError(f"--window: {text!r} is empty; give A:B in seconds with A < B")
    return parsed


def prepare(
    trace: str | Path | Trace,
    *,
    format: str | None = None,
    columns: Mapping[str, str] | str | None = None,
    unit: str | None = None,
    prefix_block_size: int | None = None,
    order: Order = "error",
    window: Window | str | None = None,
    zero_output: ZeroOutput = "drop",
    max_context: int | None = None,
    over_context: OverContext = "refuse",
    head: int | None = None,
    speedup: float | None = None,
    rate: float | None = None,
    length_scale: float | None = None,
    block_size: int = 16,
    thin: float | None = None,
    superpose: str | None = None,
    spread_ticks: float | None = None,
    idle_cap: float | None = None,
    seed: int = 0,
) -> Trace:
    """The trace as a replay submits it, by the steps of this module in their order; None leaves a step out.

    `seed` is that of `thin` and `spread_ticks`.

    Raises:
        InputError: as `open_trace` and the transforms do; both `speedup` and `rate`; while rows are consumed,
            when no row is left.
    """
    if speedup is not None and rate is not None:
        raise InputError("--speedup and --rate both set the clock; give one of them")
    transforms.check_over_context(over_context)  # also where no context is known that it could apply to
    if not isinstance(trace, Trace):
        trace = open_trace(
            trace, format=format, columns=columns, unit=unit, prefix_block_size=prefix_block_size, order=order
        )
    if window is not None:
        trace = transforms.window(trace, *(parse_window(window) if isinstance(window, str) else window))
    trace = _sample(trace, thin, spread_ticks, superpose, seed)
    if length_scale is not None:
        trace = scaling.length_scale(trace, length_scale, block_size)
    trace = _serveable(trace, zero_output, max_context, over_context)
    if head is not None:
        trace = transforms.head(trace, head)
    return not_empty(_set_clock(trace, idle_cap, speedup, rate))


def _sample(trace: Trace, share: float | None, tick_s: float | None, copies: str | None, seed: int) -> Trace:
    if share is not None:
        trace = sampling.thin(trace, share, seed)
    if tick_s is not None:
        trace = clock.spread_ticks(trace, tick_s, seed)
    if copies is not None:
        trace = sampling.superpose(trace, *sampling.parse_copies(copies))
    return trace


def _serveable(
    trace: Trace, zero_output: ZeroOutput, max_context: int | None, over_context: OverContext
) -> Trace:
    trace = transforms.zero_output(trace, zero_output)
    return trace if max_context is None else transforms.cap_context(trace, max_context, over_context)


def _set_clock(trace: Trace, idle_cap: float | None, speedup: float | None, rate: float | None) -> Trace:
    if not _has_own_start(trace.provenance.transforms):
        trace = scaling.rebase(trace)
    if idle_cap is not None:
        trace = clock.idle_cap(trace, idle_cap)
    if speedup is not None:
        trace = scaling.speedup(trace, speedup)
    if rate is not None:
        trace = scaling.target_rate(trace, rate)
    return trace


def _has_own_start(transforms_done: list[dict[str, Any]]) -> bool:
    return any(
        entry["name"] in ("window", "rebase", "generate")
        or _has_own_start(entry.get("from", {}).get("transforms", []))
        for entry in transforms_done
    )


def not_empty(trace: Trace) -> Trace:
    """The same trace; when its rows end without a single one, `InputError` says what dropped them."""
    return replace(trace, rows=_not_empty(trace))


def _not_empty(trace: Trace) -> Iterator[TraceRow]:
    empty = True
    for row in trace.rows:
        empty = False
        yield row
    if empty:
        dropped = ", ".join(f"{reason} {count}" for reason, count in trace.provenance.dropped.items())
        raise InputError(f"{trace.provenance.source}: no row is left ({dropped}); widen the filters")
