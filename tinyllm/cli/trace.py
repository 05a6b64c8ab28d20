"""`tinyllm trace`: look at a trace, convert it, cut a window, generate one.

The option types are shared by every command that reads a trace.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

if TYPE_CHECKING:
    from traces.info import TraceSummary
    from traces.measures import LengthStats
    from traces.order import Order
    from traces.schema import Provenance
    from traces.transforms import OverContext, ZeroOutput

app = typer.Typer(no_args_is_help=True, help="Look at, convert, cut and generate arrival traces.")

TraceArgument = Annotated[
    Path, typer.Argument(metavar="TRACE", help="CSV, JSON lines (also .gz) or Parquet.")
]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="tinyllm, burstgpt, azure, mooncake, table …; default: detected."),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--columns", help="Columns of another file: arrival=ts,prompt_tokens=in,output_tokens=out[,…]."
    ),
]
UnitOption = Annotated[
    str | None, typer.Option("--unit", help="Unit of its time column: s, ms, us, ns or iso; never guessed.")
]
PrefixBlockSizeOption = Annotated[
    int | None, typer.Option("--prefix-block-size", help="Tokens that one prefix id of it stands for.")
]
OrderOption = Annotated[
    str, typer.Option("--order", help="Where the clock steps back: error, segment (join) or sort.")
]
WindowOption = Annotated[
    str | None, typer.Option("--window", metavar="A:B", help="Arrivals in [A, B) seconds of trace time.")
]
RequestsOption = Annotated[
    int | None, typer.Option("--requests", help="The first N rows that can be served.")
]
SpeedupOption = Annotated[float | None, typer.Option("--speedup", help="Divide every arrival time by this.")]
RateOption = Annotated[
    float | None, typer.Option("--rate", help="Scale the clock to this mean rate, requests a second.")
]
LengthScaleOption = Annotated[
    float | None, typer.Option("--length-scale", help="Multiply lengths by this, rounding up.")
]
ZeroOutputOption = Annotated[
    str, typer.Option("--zero-output", help="Rows without output tokens: drop, keep or floor1.")
]
MaxContextOption = Annotated[
    int | None, typer.Option("--max-context", help="Context of the model, in tokens, for --over-context.")
]
OverContextOption = Annotated[
    str, typer.Option("--over-context", help="Rows over it: refuse (by the engine), truncate or drop.")
]
OutOption = Annotated[Path, typer.Option("--out", help="File to write: .parquet or .csv.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]


@app.command(epilog="Example: tinyllm trace info AzureLLMInferenceTrace_conv.csv --block-size 16")
def info(
    trace: TraceArgument,
    format: FormatOption = None,
    columns: ColumnsOption = None,
    unit: UnitOption = None,
    prefix_block_size: PrefixBlockSizeOption = None,
    order: OrderOption = "error",
    window: WindowOption = None,
    zero_output: ZeroOutputOption = "drop",
    max_context: MaxContextOption = None,
    over_context: OverContextOption = "refuse",
    requests: RequestsOption = None,
    speedup: SpeedupOption = None,
    rate: RateOption = None,
    block_size: Annotated[
        int | None, typer.Option("--block-size", help="Also the ideal prefix hits in KV blocks of this size.")
    ] = None,
) -> None:
    """Rows, drops, rate, burstiness, lengths, sessions and ideal prefix hits of what a replay would submit."""
    from traces.info import summarize
    from traces.prepare import prepare

    prepared = prepare(
        trace,
        format=format,
        columns=columns,
        unit=unit,
        prefix_block_size=prefix_block_size,
        order=cast("Order", order),
        window=window,
        zero_output=cast("ZeroOutput", zero_output),
        max_context=max_context,
        over_context=cast("OverContext", over_context),
        head=requests,
        speedup=speedup,
        rate=rate,
    )
    print_summary(summarize(prepared, block_size))


@app.command(epilog="Example: tinyllm trace convert conversation_trace.jsonl.gz --out conversation.parquet")
def convert(
    trace: TraceArgument,
    out: OutOption,
    format: FormatOption = None,
    columns: ColumnsOption = None,
    unit: UnitOption = None,
    prefix_block_size: PrefixBlockSizeOption = None,
    order: OrderOption = "error",
    force: ForceOption = False,
) -> None:
    """Write every row of a trace in tinyllm's own format: nothing is dropped, times stay as they are."""
    from traces.export import write_trace
    from traces.load import open_trace

    opened = open_trace(
        trace,
        format=format,
        columns=columns,
        unit=unit,
        prefix_block_size=prefix_block_size,
        order=cast("Order", order),
    )
    print_written(write_trace(opened, out, force=force), opened.provenance)


@app.command(
    epilog="Example: tinyllm trace window AzureLLMInferenceTrace_conv.csv 600:900 --out busy.parquet"
)
def window(
    trace: TraceArgument,
    span: Annotated[
        str, typer.Argument(metavar="A:B", help="[A, B) in seconds of trace time; 600: and :900 too.")
    ],
    out: OutOption,
    format: FormatOption = None,
    columns: ColumnsOption = None,
    unit: UnitOption = None,
    prefix_block_size: PrefixBlockSizeOption = None,
    order: OrderOption = "error",
    force: ForceOption = False,
) -> None:
    """Cut the arrivals in [A, B), re-based to A, source row numbers and prefix ids kept."""
    from traces import transforms
    from traces.export import write_trace
    from traces.load import open_trace
    from traces.prepare import not_empty, parse_window

    bounds = parse_window(span)
    opened = open_trace(
        trace,
        format=format,
        columns=columns,
        unit=unit,
        prefix_block_size=prefix_block_size,
        order=cast("Order", order),
    )
    cut = not_empty(transforms.window(opened, *bounds))
    print_written(write_trace(cut, out, force=force), cut.provenance)


@app.command(
    epilog="Example: tinyllm trace generate --requests 1000 --rate 2 --cv 3 --seed 1 --out bursty.parquet"
)
def generate(
    out: OutOption,
    requests: Annotated[int, typer.Option("--requests", help="Number of rows.")] = 1000,
    preset: Annotated[
        str, typer.Option("--preset", help="burstgpt-like, burstgpt-generator or poisson.")
    ] = "burstgpt-like",
    rate: Annotated[
        float | None, typer.Option("--rate", help="Mean arrivals a second; default: preset's.")
    ] = None,
    cv: Annotated[
        float | None,
        typer.Option("--cv", help="Burstiness: 0 even, 1 Poisson, above 1 bursty; default: preset's."),
    ] = None,
    prompt_lengths: Annotated[
        str | None,
        typer.Option("--prompt-lengths", help="E.g. constant:tokens=512, lognormal:median=300,sigma=1."),
    ] = None,
    output_lengths: Annotated[
        str | None, typer.Option("--output-lengths", help="E.g. zipf:exponent=1.1,max=1023.")
    ] = None,
    failure_share: Annotated[
        float, typer.Option("--failure-share", help="Share of rows with no output, as in real traces.")
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Equal seeds give equal traces.")] = 0,
    force: ForceOption = False,
) -> None:
    """Write a synthetic trace: Gamma arrivals, lengths and tenants of a preset or of your own."""
    from traces.export import write_trace
    from traces.generate import generate as make_trace
    from traces.lengths import parse_lengths

    made = make_trace(
        preset,
        requests=requests,
        seed=seed,
        rate=rate,
        cv=cv,
        prompt=parse_lengths(prompt_lengths) if prompt_lengths else None,
        output=parse_lengths(output_lengths) if output_lengths else None,
        failure_share=failure_share,
    )
    print_written(write_trace(made, out, force=force), made.provenance)


def print_written(path: Path, provenance: Provenance) -> None:
    """One line: where the rows went, how many, what was dropped; then the warnings."""
    typer.echo(f"wrote {path}: {format_rows(provenance)}")
    for warning in provenance.warnings:
        typer.echo(f"warning: {warning}", err=True)


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
