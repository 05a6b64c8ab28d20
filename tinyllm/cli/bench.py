"""`tinyllm bench`: suites of requests to several engines, and a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tinyllm.cli.bench_options import BenchRunOptions
from tinyllm.cli.config_file import ConfigOption
from tinyllm.cli.option_groups import with_option_groups
from tinyllm.cli.trace_options import ReadOptions
from tinyllm.errors import IncompleteRunError, InputError

if TYPE_CHECKING:
    from experiments.bench.options import BenchOptions


@with_option_groups
def bench(
    suite: Annotated[
        str, typer.Argument(metavar="SUITE", help="quick, offline, open-loop, realistic-v1, or a .toml file.")
    ],
    model: Annotated[Path, typer.Option("--model", help="Model directory (tinyllm get-model brings one).")],
    read_options: ReadOptions,
    run_options: BenchRunOptions,
    config: ConfigOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Report directory to write; only --dry-run needs none.")
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            "--backend", help="Families or single engines, joined by commas; the first is the reference."
        ),
    ] = "tinyllm,transformers,vllm",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and the expected time only.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the report in --out.")] = False,
) -> None:
    """Serve the same requests with several engines, each in a process of its own, and write a report.

    Example: tinyllm bench quick --model models/smollm2-135m --backend tinyllm,transformers --out runs/quick
    """
    from experiments.bench.bench import bench as run_bench
    from experiments.bench.options import BenchOptions

    if out is None and not dry_run:
        raise InputError("--out: is missing; give the report directory to write, or --dry-run")
    options = BenchOptions(
        suite,
        model,
        out or Path(),
        backend=backend,
        dry_run=dry_run,
        force=force,
        **vars(read_options),
        **vars(run_options),
    )
    if dry_run:
        _print_plan(options)
        return
    result = run_bench(options, lambda what: typer.echo(what, err=True))
    typer.echo(f"Report: {result.directory / 'report.md'}")
    _print_gates(result.gates)


def _print_plan(options: BenchOptions) -> None:
    from experiments.bench.dry_run import describe_plan
    from experiments.bench.plan import make_plan

    for line in describe_plan(make_plan(options)):
        typer.echo(line)


def _print_gates(gates: list[Any]) -> None:
    failed = [gate for gate in gates if not gate.ok]
    for gate in failed:
        for fault in gate.faults:
            typer.echo(f"{gate.name}: {fault}")
    if failed:
        raise IncompleteRunError(f"{len(failed)} of {len(gates)} gates failed; report.md has them all")
    typer.echo(f"All {len(gates)} gates passed.")
