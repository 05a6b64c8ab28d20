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
    ttft_slo: Annotated[
        float | None, typer.Option(help="Seconds to the first token that a request may take.")
    ] = None,
    tpot_slo: Annotated[
        float | None, typer.Option(help="Seconds per output token that a request may take.")
    ] = None,
    e2e_slo: Annotated[float | None, typer.Option(help="Seconds that a request may take in all.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that is no tinyllm report.")
    ] = False,
) -> None:
    """Compare runs: a table here, and one self-contained HTML page.

    With objectives, the share of the offered requests that met all of them and their rate (goodput) are shown.

    Example: tinyllm report runs/fcfs runs/srpt --out runs/report.html

    Example: tinyllm report runs/fcfs --ttft-slo 0.5 --tpot-slo 0.05
    """
    from analysis.metrics import ServiceLevels
    from analysis.report import write_report
    from analysis.summary import summarize
    from analysis.table import labels, print_summaries, print_tenants
    from tinyllm.engine.record.reader import read_run
    from tinyllm.errors import InputError

    given = (ttft_slo, tpot_slo, e2e_slo)
    for option, slo in zip(("ttft", "tpot", "e2e"), given, strict=True):
        if slo is not None and not slo > 0:
            raise InputError(f"--{option}-slo {slo:g}: give seconds above 0")
    levels = None if given == (None, None, None) else ServiceLevels(*given)
    loaded = [read_run(path) for path in runs]
    summaries = [summarize(run, warmup, cooldown, levels) for run in loaded]
    print_summaries(summaries, labels(loaded))
    print_tenants(loaded, warmup=warmup, cooldown=cooldown, levels=levels)
    written = write_report(
        loaded, out, warmup=warmup, cooldown=cooldown, force=force, summaries=summaries, levels=levels
    )
    typer.echo(f"Report: {written}")
