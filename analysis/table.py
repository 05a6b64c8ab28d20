"""The comparison table in the terminal: a line a run, at most 110 columns wide."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.columns import COMPARISON, LEVELS, Column, headings, tenant_columns
from analysis.fairness import MAX_TENANTS, num_tenants, tenant_table
from analysis.metrics import ServiceLevels
from analysis.summary import Summary, summarize
from tinyllm.engine.record.reader import Run

MAX_WIDTH = 110
NOT_DEFINED = "–"
"""Shown where a metric has no value, such as the latency of a run in which nothing finished."""


def print_comparison(
    runs: Sequence[Run],
    *,
    warmup: float = 0.0,
    cooldown: float = 0.0,
    levels: ServiceLevels | None = None,
    console: Console | None = None,
) -> None:
    """Print a line a run, the warnings, and a line a tenant. Arguments as `analysis.summary.summarize`."""
    summaries = [summarize(run, warmup, cooldown, levels) for run in runs]
    print_summaries(summaries, labels(runs), console=console)
    print_tenants(runs, warmup=warmup, cooldown=cooldown, levels=levels, console=console)


def print_summaries(
    summaries: Sequence[Summary], names: Sequence[str], *, console: Console | None = None
) -> None:
    """Print the table of summaries that are there already, one name each."""
    console = console or _console()
    console.print(comparison_table(summaries, names))
    if any(summary["attainment"] is not None for summary in summaries):
        console.print(comparison_table(summaries, names, LEVELS))
    for text, which in grouped_warnings(summaries, names):
        console.print(Text(f"! {which}: {text}", style="yellow"))


def print_tenants(
    runs: Sequence[Run],
    *,
    warmup: float = 0.0,
    cooldown: float = 0.0,
    levels: ServiceLevels | None = None,
    console: Console | None = None,
) -> None:
    """Print a line for each tenant of the runs that have more than one; nothing where none has."""
    several = [(run, name) for run, name in zip(runs, labels(runs), strict=True) if num_tenants(run) > 1]
    if not several:
        return
    columns = tenant_columns(levels)
    table = _empty_table({"run": 18, "tenant": 22}, columns, min_width=8)
    for run, name in several:
        for tenant, numbers in tenant_rows(tenant_table(run, levels, warmup, cooldown), columns):
            table.add_row(Text(name), Text(tenant), *numbers)
    (console or _console()).print(table)


def tenant_rows(table: pd.DataFrame, columns: Sequence[Column]) -> list[tuple[str, list[str]]]:
    """`(tenant, its numbers as text)`, at most `MAX_TENANTS`, then a line that counts the others."""
    rows = [
        (str(row["tenant"]), [_cell(row[column.key], column.scale) for column in columns])
        for row in table.head(MAX_TENANTS).to_dict("records")
    ]
    if len(table) > MAX_TENANTS:
        rows.append((f"… {len(table) - MAX_TENANTS:,} more", [""] * len(columns)))
    return rows


def _cell(value: Any, scale: float) -> str:
    return format_number(None if value != value else value, scale)


def comparison_table(
    summaries: Sequence[Summary], names: Sequence[str], columns: Sequence[Column] = COMPARISON
) -> Table:
    """The table as a rich renderable."""
    table = _empty_table({"run": 18, "policy": 10}, columns, min_width=6)
    for summary, name in zip(summaries, names, strict=True):
        numbers = (format_number(summary[column.key], column.scale) for column in columns)
        table.add_row(Text(name), Text(summary["policy"]), *numbers)
    return table


def _empty_table(names: Mapping[str, int], columns: Sequence[Column], min_width: int) -> Table:
    """Columns of text, cut at a width, then the columns of numbers."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    for name, width in names.items():
        table.add_column(f"\n{name}", no_wrap=True, max_width=width, overflow="ellipsis")
    for heading in headings(columns):
        table.add_column(heading, justify="right", no_wrap=True, vertical="bottom", min_width=min_width)
    return table


def labels(runs: Sequence[Run]) -> list[str]:
    """A short name for each run, unique among them: its folder, with the parent's name where folders agree."""
    paths = [run.path.resolve() for run in runs]
    often = Counter(path.name for path in paths)
    names = [path.name if often[path.name] == 1 else f"{path.parent.name}/{path.name}" for path in paths]
    again = Counter(names)
    return [name if again[name] == 1 else f"{name} #{number}" for number, name in enumerate(names, 1)]


def grouped_warnings(summaries: Sequence[Summary], names: Sequence[str]) -> list[tuple[str, str]]:
    """Each different warning once, with the runs that it is about: `(text, "fcfs, srpt" or "all runs")`."""
    about: dict[str, list[str]] = {}
    for summary, name in zip(summaries, names, strict=True):
        for text in summary["warnings"]:
            about.setdefault(text, []).append(name)
    everyone = len(names) if len(names) > 1 else -1
    return [
        (text, "all runs" if len(which) == everyone else ", ".join(which)) for text, which in about.items()
    ]


def format_number(value: Any, scale: float = 1.0) -> str:
    """Three digits that count: `19,366`, `1,155`, `12.3`, `0.0457`."""
    if value is None:
        return NOT_DEFINED
    if isinstance(value, int):
        return f"{value:,}"
    value *= scale
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    text = f"{value:#.3g}"
    return f"{value:.1e}" if "e" in text else text


def _console() -> Console:
    # A pipe has no width; rich would take 80 and cut the numbers off.
    probe = Console()
    return probe if probe.is_terminal or "COLUMNS" in os.environ else Console(width=MAX_WIDTH)
