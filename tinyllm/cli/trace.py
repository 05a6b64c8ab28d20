"""`tinyllm trace`: look at a trace, convert it, prepare what is replayed, cut a window, generate one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tinyllm.cli.option_groups import with_option_groups
from tinyllm.cli.trace_options import (
    BlockSizeOption,
    ForceOption,
    GenerateOptions,
    LengthScaleOption,
    OutOption,
    PrepareOptions,
    ReadOptions,
    TraceArgument,
)
from tinyllm.cli.trace_summary import format_rows, print_summary

if TYPE_CHECKING:
    from traces.schema import Provenance, Trace

BLOCK_SIZE = 16

app = typer.Typer(no_args_is_help=True, help="Look at, convert, cut and generate arrival traces.")


@app.command(epilog="Example: tinyllm trace info AzureLLMInferenceTrace_conv.csv --block-size 16")
@with_option_groups
def info(
    trace: TraceArgument,
    read: ReadOptions,
    chosen: PrepareOptions,
    block_size: Annotated[
        int | None, typer.Option("--block-size", help="Also the ideal prefix hits in KV blocks of this size.")
    ] = None,
) -> None:
    """Rows, drops, rate, burstiness, lengths, sessions and ideal prefix hits of what a replay would submit."""
    from traces.info import summarize

    prepared = _prepared(trace, read, chosen, BLOCK_SIZE if block_size is None else block_size)
    print_summary(summarize(prepared, block_size))


@app.command(epilog="Example: tinyllm trace convert conversation_trace.jsonl.gz --out conversation.parquet")
@with_option_groups
def convert(
    trace: TraceArgument,
    out: OutOption,
    read: ReadOptions,
    length_scale: LengthScaleOption = None,
    block_size: BlockSizeOption = BLOCK_SIZE,
    force: ForceOption = False,
) -> None:
    """Write every row of a trace in tinyllm's own format: nothing is dropped, times stay as they are."""
    from traces import scaling
    from traces.export import write_trace

    opened = _opened(trace, read)
    if length_scale is not None:
        opened = scaling.length_scale(opened, length_scale, block_size)
    print_written(write_trace(opened, out, force=force), opened.provenance)


@app.command(
    epilog="Example: tinyllm trace prepare BurstGPT_1.csv --spread-ticks 1 --rate 8 --out busy.parquet"
)
@with_option_groups
def prepare(
    trace: TraceArgument,
    out: OutOption,
    read: ReadOptions,
    chosen: PrepareOptions,
    block_size: BlockSizeOption = BLOCK_SIZE,
    force: ForceOption = False,
) -> None:
    """Write what a replay with these options would submit, in tinyllm's own format."""
    from traces.export import write_trace

    prepared = _prepared(trace, read, chosen, block_size)
    print_written(write_trace(prepared, out, force=force), prepared.provenance)


@app.command(
    epilog="Example: tinyllm trace window AzureLLMInferenceTrace_conv.csv 600:900 --out busy.parquet"
)
@with_option_groups
def window(
    trace: TraceArgument,
    span: Annotated[
        str, typer.Argument(metavar="A:B", help="[A, B) in seconds of trace time; 600: and :900 too.")
    ],
    out: OutOption,
    read: ReadOptions,
    force: ForceOption = False,
) -> None:
    """Cut the arrivals in [A, B), re-based to A, source row numbers and prefix ids kept."""
    from traces import transforms
    from traces.export import write_trace
    from traces.prepare import not_empty, parse_window

    bounds = parse_window(span)
    cut = not_empty(transforms.window(_opened(trace, read), *bounds))
    print_written(write_trace(cut, out, force=force), cut.provenance)


@app.command(
    epilog="Example: tinyllm trace generate --requests 1000 --rate 2 --cv 3 --seed 1 --out bursty.parquet"
)
@with_option_groups
def generate(out: OutOption, chosen: GenerateOptions, force: ForceOption = False) -> None:
    """Write a synthetic trace: a preset's or your own arrivals and lengths, ServeGen's clients, conversations."""
    from traces.export import write_trace
    from traces.synthetic import SyntheticOptions, make_synthetic

    made = make_synthetic(SyntheticOptions(**vars(chosen)))
    print_written(write_trace(made, out, force=force), made.provenance)


def print_written(path: Path, provenance: Provenance) -> None:
    """One line: where the rows went, how many, what was dropped; then the warnings."""
    typer.echo(f"wrote {path}: {format_rows(provenance)}")
    for warning in provenance.warnings:
        typer.echo(f"warning: {warning}", err=True)


def _opened(trace: Path, read: ReadOptions) -> Trace:
    from traces.load import open_trace

    return open_trace(trace, **vars(read))


def _prepared(trace: Path, read: ReadOptions, chosen: PrepareOptions, block_size: int) -> Trace:
    from traces.prepare import prepare as prepare_trace

    steps = dict(vars(chosen))
    return prepare_trace(trace, head=steps.pop("requests"), block_size=block_size, **vars(read), **steps)
