"""`tinyllm resim`: make a recorded run's scheduling decisions again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def resim(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory of a real or simulated run.")],
    out: Annotated[
        Path | None, typer.Option(help="Directory for the re-simulated log; default: RUN-resim.")
    ] = None,
    hashes: Annotated[
        str, typer.Option(help="Block hashes: recorded, or prefix-ids (made from the trace's).")
    ] = "recorded",
    force: Annotated[bool, typer.Option("--force", help="Replace the run in --out.")] = False,
) -> None:
    """Drive the simulator with a run's recorded step times, and compare every decision; exit 1 if one differs.

    Example: tinyllm resim runs/real
    """
    from typing import cast

    from experiments.resim import Hashes, resimulate
    from tinyllm.errors import IncompleteRunError, InputError

    if hashes not in ("recorded", "prefix-ids"):
        raise InputError(f"--hashes {hashes}: choose recorded or prefix-ids")
    target = out or run.with_name(f"{run.name}-resim")
    differences = resimulate(run, target, force=force or out is None, hashes=cast(Hashes, hashes))
    for difference in differences:
        typer.echo(f"{difference.table}: {difference.rows} rows differ; first: {difference.detail}")
    typer.echo(f"Log: {target}")
    if differences:
        raise IncompleteRunError(f"{run}: {len(differences)} tables of the re-simulation differ")
    typer.echo("steps, spans, events and requests are equal row by row (measured durations aside)")
