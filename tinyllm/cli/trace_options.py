"""Options of every command that reads a trace."""

from __future__ import annotations

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
    float | None, typer.Option("--rate", help="Scale the clock to this mean rate, requests a second.")
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
