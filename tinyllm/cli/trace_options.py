"""Options of every command that reads a trace, and the groups of them that `tinyllm trace` takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

TraceArgument = Annotated[
    Path, typer.Argument(metavar="TRACE", help="CSV, JSON lines (also .gz) or Parquet.")
]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="burstgpt, azure, mooncake, vidur, table …; default: detected."),
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
    float | None,
    typer.Option("--rate", help="Scale the clock to this mean rate, requests a second; inf: all at once."),
]
LengthScaleOption = Annotated[
    float | None, typer.Option("--length-scale", help="Multiply lengths by this, rounding up.")
]
ThinOption = Annotated[
    float | None, typer.Option("--thin", help="Keep this share of the sessions, each whole.")
]
SuperposeOption = Annotated[
    str | None,
    typer.Option(
        "--superpose", metavar="N:S", help="N copies over each other, each S seconds after the one before."
    ),
]
SpreadTicksOption = Annotated[
    float | None,
    typer.Option("--spread-ticks", help="Tick of a coarse clock, seconds: draw arrivals from within it."),
]
IdleCapOption = Annotated[
    float | None,
    typer.Option("--idle-cap", help="Seconds of trace time that a silence may last, before any speed-up."),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Of --thin and --spread-ticks.")]
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
BlockSizeOption = Annotated[
    int, typer.Option("--block-size", help="Tokens of a KV block, which --length-scale has to suit.")
]


@dataclass(frozen=True)
class ReadOptions:
    """How a file is read: what `traces.load.open_trace` takes."""

    format: FormatOption = None
    columns: ColumnsOption = None
    unit: UnitOption = None
    prefix_block_size: PrefixBlockSizeOption = None
    order: OrderOption = "error"


@dataclass(frozen=True)
class PrepareOptions:
    """What is done to its rows: what `traces.prepare.prepare` takes, `requests` as its `head`."""

    window: WindowOption = None
    zero_output: ZeroOutputOption = "drop"
    max_context: MaxContextOption = None
    over_context: OverContextOption = "refuse"
    requests: RequestsOption = None
    thin: ThinOption = None
    spread_ticks: SpreadTicksOption = None
    superpose: SuperposeOption = None
    length_scale: LengthScaleOption = None
    idle_cap: IdleCapOption = None
    speedup: SpeedupOption = None
    rate: RateOption = None
    seed: SeedOption = 0


@dataclass(frozen=True)
class GenerateOptions:
    """What a generator makes: what `traces.synthetic.SyntheticOptions` holds."""

    requests: Annotated[
        int | None, typer.Option("--requests", help="Number of rows; default: 1000, of --clients all.")
    ] = None
    preset: Annotated[str, typer.Option("--preset", help="burstgpt-like, burstgpt-generator or poisson.")] = (
        "burstgpt-like"
    )
    rate: Annotated[
        float | None, typer.Option("--rate", help="Mean arrivals a second; default: preset's.")
    ] = None
    cv: Annotated[
        float | None,
        typer.Option("--cv", help="Burstiness: 0 even, 1 Poisson, above 1 bursty; default: preset's."),
    ] = None
    arrivals: Annotated[
        str | None,
        typer.Option("--arrivals", help="poisson, gamma:cv=3, weibull:cv=2, on-off:on=10,off=30, diurnal."),
    ] = None
    clients: Annotated[
        Path | None, typer.Option("--clients", help="ServeGen's client files (one or a directory of them).")
    ] = None
    conversations: Annotated[
        bool,
        typer.Option("--conversations", help="Sessions with growing history; --rate counts their starts."),
    ] = False
    turns: Annotated[float, typer.Option("--turns", help="Mean turns of a conversation.")] = 3.13
    think: Annotated[
        float, typer.Option("--think", help="Median seconds from turn to turn of a conversation.")
    ] = 144.0
    prompt_lengths: Annotated[
        str | None,
        typer.Option("--prompt-lengths", help="E.g. constant:tokens=512, lognormal:median=300,sigma=1."),
    ] = None
    output_lengths: Annotated[
        str | None, typer.Option("--output-lengths", help="E.g. zipf:exponent=1.1,max=1023.")
    ] = None
    failure_share: Annotated[
        float, typer.Option("--failure-share", help="Share of rows with no output, as in real traces.")
    ] = 0.0
    seed: Annotated[int, typer.Option("--seed", help="Equal seeds give equal traces.")] = 0
