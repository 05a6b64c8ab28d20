"""Windows of a trace: at shares of its rows, apart from each other, with the rows before them as warm-up."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from experiments.bench.options import BenchOptions
from experiments.bench.suite import TraceWindows
from experiments.bench.vocabulary import Vocabulary
from experiments.bench.workloads import Stream, scaled_warmup
from tinyllm.errors import InputError
from traces.generate import generate
from traces.load import open_trace
from traces.prepare import prepare
from traces.schema import Trace, TraceRow
from traces.spool import Spool

AZURE_CONV: Final = Path("azure2023/AzureLLMInferenceTrace_conv.csv")
"""Below `$TINYLLM_TRACES`: what is taken where the user names no trace."""

PRESET: Final = "burstgpt-like"
ROWS_A_WINDOW: Final = 12
"""Windows' worth of rows of a generated trace, so that the first and last tenth hold one."""


@dataclass(frozen=True)
class TraceSource:
    """Where the windows come from.

    Attributes:
        label: says of a generated trace that it is one.
        provenance: file, sha256, transforms.
    """

    label: str
    provenance: dict[str, Any]


def trace_streams(
    windows: TraceWindows, options: BenchOptions, vocabulary: Vocabulary
) -> tuple[list[Stream], TraceSource]:
    """The windows as streams, with prompts of the rows' lengths.

    Raises:
        InputError: a wrong trace or option, or a trace too short for windows that do not overlap.
    """
    measured = max(2, options.at_most(windows.requests))
    num_warmup = scaled_warmup(windows.warmup, measured, windows.requests)
    size = num_warmup + measured
    trace, label = _open(options, size, len(windows.positions))
    trace = prepare(
        trace,
        max_context=vocabulary.max_model_len,
        over_context="truncate",
        length_scale=options.length_scale,
        block_size=1,
    )
    with Spool() as spool:
        rows = spool.store(trace.rows)
        starts = window_starts(windows.positions, rows.num_rows, num_warmup, measured, label)
        cut = _cut(rows, starts, size)
    streams = []
    for position, chosen in zip(windows.positions, cut, strict=True):
        prompts = vocabulary.matched(chosen, trace.prefix_block_size)
        streams.append(
            Stream(f"window-{100 * position:g}", tuple(chosen), prompts, num_warmup, windows.loads)
        )
    entry = trace.provenance
    facts = {"source": Path(entry.source).name, "format": entry.format, "sha256": entry.sha256}
    return streams, TraceSource(label, {**facts, "rows": rows.num_rows, "transforms": entry.transforms})


def window_starts(
    positions: Sequence[float], num_rows: int, num_warmup: int, measured: int, source: str
) -> list[int]:
    """The first row of each window: its warm-up ends at the position, or where the last window just fits.

    Raises:
        InputError: they would overlap.
    """
    starts = _starts(positions, num_rows, num_warmup, measured)
    if starts is None:
        share = num_warmup / measured
        fitting = next(
            (n for n in range(measured, 1, -1) if _starts(positions, num_rows, round(share * n), n)), None
        )
        mend = "give a longer one" if fitting is None else f"give --requests {fitting} or a longer one"
        raise InputError(
            f"{source}: its {num_rows:,} usable rows hold no {len(positions)} windows of "
            f"{num_warmup + measured:,} requests apart from each other; {mend}"
        )
    return starts


def _starts(positions: Sequence[float], num_rows: int, num_warmup: int, measured: int) -> list[int] | None:
    size = num_warmup + measured
    starts = [max(0, min(int(share * num_rows) - num_warmup, num_rows - size)) for share in positions]
    apart = all(late - early >= size for early, late in pairwise(starts))
    return starts if apart and size <= num_rows else None


def _cut(rows: Iterable[TraceRow], starts: Sequence[int], size: int) -> list[list[TraceRow]]:
    cut: list[list[TraceRow]] = [[] for _ in starts]
    for number, row in enumerate(rows):
        for start, window in zip(starts, cut, strict=True):
            if start <= number < start + size:
                window.append(row)
    return cut


def _open(options: BenchOptions, size: int, num_windows: int) -> tuple[Trace, str]:
    """The trace, and how a report calls it."""
    folder = os.environ.get("TINYLLM_TRACES")
    path = options.trace
    if path is None and folder is not None and (Path(folder) / AZURE_CONV).is_file():
        path = Path(folder) / AZURE_CONV
    if path is None:
        rows = max(ROWS_A_WINDOW, 4 * num_windows) * size
        label = f"a generated trace ({PRESET}, {rows:,} rows), no recorded one"
        return generate(PRESET, requests=rows, seed=options.seed), label
    given = {} if options.trace is None else _read_options(options)
    trace = open_trace(path, **given)
    return trace, f"{trace.provenance.format} trace {path.name}"


def _read_options(options: BenchOptions) -> dict[str, Any]:
    names = ("format", "columns", "unit", "prefix_block_size", "order")
    return {name: getattr(options, name) for name in names}
