"""`tinyllm report`: compare runs in the terminal and on one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run directories, shown in this order.")
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    warmup: Annotated[float, typer.Option(help="Seconds of arrivals to leave out at the start.")] = 0.0,
    cooldown: Annotated[float, typer.Option(help="Seconds of arrivals to leave out at the end.")] = 0.0,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that is no tinyllm report.")
    ] = False,
) -> None:
    """Compare runs: a table here, and one self-contained HTML page.

    Example: tinyllm report runs/fcfs runs/srpt --out runs/report.html
    """
    from analysis.report import write_report
    from analysis.summary import summarize
    from analysis.table import labels, print_summaries
    from tinyllm.engine.record.reader import read_run

    loaded = [read_run(path) for path in runs]
    summaries = [summarize(run, warmup, cooldown) for run in loaded]
    print_summaries(summaries, labels(loaded))
    written = write_report(loaded, out, warmup=warmup, cooldown=cooldown, force=force, summaries=summaries)
    typer.echo(f"Report: {written}")
