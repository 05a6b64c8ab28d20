"""`tinyllm trace`: look at a trace, convert it, prepare what is replayed, cut a window, generate one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tinyllm.cli.trace_options import (
    ColumnsOption,
    ForceOption,
    FormatOption,
    IdleCapOption,
    MaxContextOption,
    OrderOption,
    OutOption,
    OverContextOption,
    PrefixBlockSizeOption,
    RateOption,
    RequestsOption,
    SeedOption,
    SpeedupOption,
    SpreadTicksOption,
    SuperposeOption,
    ThinOption,
    TraceArgument,
    UnitOption,
    WindowOption,
    ZeroOutputOption,
)
from tinyllm.cli.trace_summary import format_rows, print_summary

if TYPE_CHECKING:
    from traces.order import Order
    from traces.schema import Provenance
    from traces.transforms import OverContext, ZeroOutput

app = typer.Typer(no_args_is_help=True, help="Look at, convert, cut and generate arrival traces.")


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
    thin: ThinOption = None,
    spread_ticks: SpreadTicksOption = None,
    superpose: SuperposeOption = None,
    idle_cap: IdleCapOption = None,
    speedup: SpeedupOption = None,
    rate: RateOption = None,
    seed: SeedOption = 0,
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
        thin=thin,
        spread_ticks=spread_ticks,
        superpose=superpose,
        idle_cap=idle_cap,
        speedup=speedup,
        rate=rate,
        seed=seed,
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
    epilog="Example: tinyllm trace prepare BurstGPT_1.csv --spread-ticks 1 --rate 8 --out busy.parquet"
)
def prepare(
    trace: TraceArgument,
    out: OutOption,
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
    thin: ThinOption = None,
    spread_ticks: SpreadTicksOption = None,
    superpose: SuperposeOption = None,
    idle_cap: IdleCapOption = None,
    speedup: SpeedupOption = None,
    rate: RateOption = None,
    seed: SeedOption = 0,
    force: ForceOption = False,
) -> None:
    """Write what a replay with these options would submit, in tinyllm's own format."""
    from traces.export import write_trace
    from traces.prepare import prepare as prepare_trace

    prepared = prepare_trace(
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
        thin=thin,
        spread_ticks=spread_ticks,
        superpose=superpose,
        idle_cap=idle_cap,
        speedup=speedup,
        rate=rate,
        seed=seed,
    )
    print_written(write_trace(prepared, out, force=force), prepared.provenance)


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
    requests: Annotated[
        int | None, typer.Option("--requests", help="Number of rows; default: 1000, of --clients all.")
    ] = None,
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
    arrivals: Annotated[
        str | None,
        typer.Option("--arrivals", help="poisson, gamma:cv=3, weibull:cv=2, on-off:on=10,off=30, diurnal."),
    ] = None,
    clients: Annotated[
        Path | None, typer.Option("--clients", help="ServeGen's client files (one or a directory of them).")
    ] = None,
    conversations: Annotated[
        bool,
        typer.Option("--conversations", help="Sessions with growing history; --rate counts their starts."),
    ] = False,
    turns: Annotated[float, typer.Option("--turns", help="Mean turns of a conversation.")] = 3.13,
    think: Annotated[
        float, typer.Option("--think", help="Median seconds from turn to turn of a conversation.")
    ] = 144.0,
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
    """Write a synthetic trace: a preset's or your own arrivals and lengths, ServeGen's clients, conversations."""
    from traces.export import write_trace
    from traces.synthetic import SyntheticOptions, make_synthetic

    made = make_synthetic(
        SyntheticOptions(
            preset=preset,
            requests=requests,
            rate=rate,
            cv=cv,
            arrivals=arrivals,
            clients=clients,
            conversations=conversations,
            turns=turns,
            think=think,
            prompt_lengths=prompt_lengths,
            output_lengths=output_lengths,
            failure_share=failure_share,
            seed=seed,
        )
    )
    print_written(write_trace(made, out, force=force), made.provenance)


def print_written(path: Path, provenance: Provenance) -> None:
    """One line: where the rows went, how many, what was dropped; then the warnings."""
    typer.echo(f"wrote {path}: {format_rows(provenance)}")
    for warning in provenance.warnings:
        typer.echo(f"warning: {warning}", err=True)
