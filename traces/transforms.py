"""Transforms of a trace: each takes and gives a stream, notes itself in the provenance and counts its drops.

`rows_in == rows_out + dropped.total()` holds at every moment. The transforms of `traces.scaling` change the
clock, those here choose rows and trim lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, Literal, get_args

from tinyllm.errors import InputError
from traces.schema import Provenance, Trace, TraceRow

ZeroOutput = Literal["drop", "keep", "floor1"]
ZERO_OUTPUTS: Final = get_args(ZeroOutput)
OverContext = Literal["refuse", "truncate", "drop"]
OVER_CONTEXTS: Final = get_args(OverContext)

READ_ON_ROWS: Final = 200_000
"""Rows that are read past the end of a window or head, to count them and to learn the later rate: the whole of
a small trace, and of a large one no more than a second or two."""

UNLIKE_FACTOR: Final = 3.0
"""A head whose rate differs by more than this from that of the rows after it is not like the trace."""


def derive(trace: Trace, rows: Iterator[TraceRow], entry: dict[str, Any]) -> Trace:
    """The trace with other rows and `entry` appended to its provenance."""
    trace.provenance.transforms.append(entry)
    return replace(trace, rows=rows)


def drop(provenance: Provenance, reason: str) -> None:
    """Count a row that goes no further."""
    provenance.rows_out -= 1
    provenance.dropped[reason] += 1


def window(trace: Trace, start_ns: int, stop_ns: int | None = None) -> Trace:
    """Rows that arrive in [start, stop), re-based so that `start` is 0; `source_row` stays.

    Raises:
        InputError: the window is empty or begins before 0.
    """
    if start_ns < 0 or (stop_ns is not None and stop_ns <= start_ns):
        raise InputError("--window: the window is empty; give A:B in seconds with 0 <= A < B")
    entry = {"name": "window", "start_ns": start_ns, "stop_ns": stop_ns}
    return derive(trace, _window(trace, start_ns, stop_ns), entry)


def _window(trace: Trace, start_ns: int, stop_ns: int | None) -> Iterator[TraceRow]:
    for row in trace.rows:
        if stop_ns is not None and row.arrival_ns >= stop_ns:
            drop(trace.provenance, "after_window")
            _read_on(trace, "after_window")
            return
        if row.arrival_ns < start_ns:
            drop(trace.provenance, "before_window")
        else:
            yield row._replace(arrival_ns=row.arrival_ns - start_ns)


def head(trace: Trace, count: int) -> Trace:
    """The first `count` rows; warns when they are unlike the rest (BurstGPT file 1 begins very quietly).

    Raises:
        InputError: `count` is below 1.
    """
    if count < 1:
        raise InputError(f"--requests: {count} is not a number of requests; give 1 or more")
    entry: dict[str, Any] = {"name": "head", "count": count}
    return derive(trace, _head(trace, count, entry), entry)


def _head(trace: Trace, count: int, entry: dict[str, Any]) -> Iterator[TraceRow]:
    first = last = None
    for taken, row in enumerate(trace.rows, start=1):
        first, last = row if first is None else first, row
        yield row
        if taken == count:
            break
    if first is None or last is None:
        return
    later, end_ns = _read_on(trace, "after_head")
    rate = _rate(count, last.arrival_ns - first.arrival_ns)
    later_rate = _rate(later, end_ns - last.arrival_ns) if later else None
    entry |= {"rate": rate, "later_rate": later_rate}
    if rate and later_rate and not 1 / UNLIKE_FACTOR <= rate / later_rate <= UNLIKE_FACTOR:
        factor = max(rate / later_rate, later_rate / rate)
        side = "below" if rate < later_rate else "above"
        trace.provenance.warnings.append(
            f"the first {count} rows arrive at {rate:.3g}/s, {factor:.0f} times {side} the later rate of "
            f"{later_rate:.3g}/s: they are not like the trace; take a --window of its busy part"
        )


def _rate(rows: int, span_ns: int) -> float | None:
    return rows * 1e9 / span_ns if span_ns > 0 else None


def _read_on(trace: Trace, reason: str) -> tuple[int, int]:
    """Count the rows that are left, and give their number and last arrival; stops at `READ_ON_ROWS`."""
    count = end_ns = 0
    for row in trace.rows:
        drop(trace.provenance, reason)
        count, end_ns = count + 1, row.arrival_ns
        if count == READ_ON_ROWS:
            trace.provenance.warnings.append(f"rows past the {count} counted as {reason} were not read")
            break
    return count, end_ns


def zero_output(trace: Trace, rule: ZeroOutput = "drop") -> Trace:
    """Rows without output tokens (failures of the traced service): `drop`, `keep`, or `floor1`: make it 1.

    Rows with an empty prompt cannot be served: they are dropped under every rule, under their own reason.
    """
    if rule not in ZERO_OUTPUTS:
        raise InputError(f"--zero-output: unknown rule {rule!r}; choose {', '.join(ZERO_OUTPUTS)}")
    entry: dict[str, Any] = {"name": "zero_output", "rule": rule, "rows": 0}
    return derive(trace, _zero_output(trace, rule, entry), entry)


def _zero_output(trace: Trace, rule: ZeroOutput, entry: dict[str, Any]) -> Iterator[TraceRow]:
    for row in trace.rows:
        if row.output_tokens == 0:
            entry["rows"] += 1
            if rule == "drop":
                drop(trace.provenance, "zero_output")
                continue
        if row.prompt_tokens == 0:
            drop(trace.provenance, "empty_prompt")
        elif rule == "floor1" and row.output_tokens == 0:
            yield row._replace(output_tokens=1)
        else:
            yield row


def cap_context(trace: Trace, max_context: int, rule: OverContext = "refuse") -> Trace:
    """Rows that do not fit the model's context: prompt and output (at least 1) are over `max_context` tokens.

    * `refuse`: they go on as they are; the engine refuses a prompt that leaves no room for a token and ends
      the output of the others at the end of the context.
    * `truncate`: the prompt keeps its first `max_context − 1` tokens at most, the output what room is left.
    * `drop`: they are dropped under `over_context`.

    How many they are is noted in the transform's entry.
    """
    if max_context < 2:
        raise InputError(f"--max-context: {max_context} has no room for a prompt and a token; give 2 or more")
    check_over_context(rule)
    entry: dict[str, Any] = {"name": "cap_context", "max_context": max_context, "rule": rule, "rows": 0}
    return derive(trace, _cap_context(trace, max_context, rule, entry), entry)


def check_over_context(rule: str) -> None:
    """Raise InputError unless it is a rule of `cap_context`."""
    if rule not in OVER_CONTEXTS:
        raise InputError(f"--over-context: unknown rule {rule!r}; choose {', '.join(OVER_CONTEXTS)}")


def _cap_context(trace: Trace, limit: int, rule: OverContext, entry: dict[str, Any]) -> Iterator[TraceRow]:
    for row in trace.rows:
        if row.prompt_tokens + max(row.output_tokens, 1) <= limit:
            yield row
            continue
        entry["rows"] += 1
        if rule == "drop":
            drop(trace.provenance, "over_context")
        else:
            yield _truncate(row, limit, trace.prefix_block_size) if rule == "truncate" else row


def _truncate(row: TraceRow, limit: int, block_size: int | None) -> TraceRow:
    prompt_tokens = min(row.prompt_tokens, limit - 1)
    ids = row.prefix_ids
    if ids is not None and block_size is not None:
        ids = ids[: -(-prompt_tokens // block_size)]
    return row._replace(
        prompt_tokens=prompt_tokens,
        output_tokens=min(row.output_tokens, limit - prompt_tokens),
        prefix_ids=ids,
    )
