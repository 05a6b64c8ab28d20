"""How `tinyllm trace` prints the statistics of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traces.info import TraceSummary
    from traces.measures import LengthStats
    from traces.schema import Provenance


def format_rows(provenance: Provenance) -> str:
    """`1,557 of 19,366 rows (dropped: before_window 3,313, …)`."""
    text = f"{provenance.rows_out:,} of {provenance.rows_in:,} rows"
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in provenance.dropped.items())
    return f"{text} (dropped: {dropped})" if dropped else text


def print_summary(summary: TraceSummary) -> None:
    """The summary as a table of two columns, the warnings below it."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _facts(summary):
        table.add_row(f"[bold]{name}", escape(value))
    console = Console(highlight=False)
    console.print(table)
    for warning in summary.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)


def _facts(summary: TraceSummary) -> list[tuple[str, str]]:
    provenance = summary.provenance
    facts = [
        ("source", f"{provenance.source} ({provenance.format})"),
        ("sha256", provenance.sha256 or "none"),
        ("rows", format_rows(provenance)),
        ("transforms", "; ".join(_transform(entry) for entry in provenance.transforms)),
        ("span", f"{summary.span_s:,.3f} s, {summary.distinct_times:,} distinct times"),
        ("rate", _number(summary.rate, "/s")),
        ("burstiness", f"CV {_number(summary.cv)}, index of dispersion (10 s) {_number(summary.dispersion)}"),
        ("prompt tokens", _lengths(summary.prompt)),
        ("output tokens", _lengths(summary.output)),
    ]
    if summary.turns_per_session is not None:
        facts.append(("sessions", f"{summary.sessions:,}, {summary.turns_per_session:.2f} turns each"))
    if summary.tenants:
        facts.append(("tenants", ", ".join(f"{name} {rows:,}" for name, rows in summary.tenants.items())))
    if summary.prefix_hit_share is not None:
        hits = f"{summary.prefix_hit_share:.2%} of prompt tokens"
        if summary.block_hit_share is not None:
            hits += f", {summary.block_hit_share:.2%} in full blocks of {summary.block_size}"
        facts.append(("ideal prefix hits", hits))
    return facts


def _transform(entry: dict[str, Any]) -> str:
    arguments = " ".join(f"{key}={value}" for key, value in entry.items() if key not in ("name", "from"))
    return f"{entry['name']} {arguments}".strip()


def _number(value: float | None, unit: str = "") -> str:
    return "undefined" if value is None else f"{value:.4g}{unit}"


def _lengths(stats: LengthStats) -> str:
    return (
        f"mean {stats.mean:,.0f}, median {stats.median:,.0f}, p95 {stats.p95:,.0f}, "
        f"p99 {stats.p99:,.0f}, max {stats.max:,}"
    )
