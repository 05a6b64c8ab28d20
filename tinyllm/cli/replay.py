"""`tinyllm replay`: a trace through a policy, in simulation or on a real model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tinyllm.cli.config_file import ConfigOption
from tinyllm.cli.option_groups import with_option_groups
from tinyllm.cli.replay_options import (
    ClientOptions,
    DeviceOptions,
    PolicyOptions,
    RealOptions,
    RowOptions,
)
from tinyllm.cli.scheduler_options import SchedulerOptions
from tinyllm.cli.trace_options import ReadOptions, TraceArgument

if TYPE_CHECKING:
    from experiments.options import ReplayOptions
    from experiments.replay import ReplayResult


@with_option_groups
def replay(
    trace: TraceArgument,
    out: Annotated[Path, typer.Option("--out", help="Run directory to write.")],
    policy_options: PolicyOptions,
    read_options: ReadOptions,
    row_options: RowOptions,
    client_options: ClientOptions,
    device_options: DeviceOptions,
    real_options: RealOptions,
    scheduler_options: SchedulerOptions,
    config: ConfigOption = None,
    mode: Annotated[
        str, typer.Option(help="sim: a simulated clock; real: --model on --device; vllm: --model in vLLM.")
    ] = "sim",
    force: Annotated[bool, typer.Option("--force", help="Replace the run in --out.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
) -> None:
    """Replay an arrival trace through a scheduling policy, and write the event log of the run.

    Example: tinyllm replay trace.csv --policy srpt --predictor perfect --gpu h100
    --model-shape llama-3.1-8b --out runs/srpt
    """
    from experiments.options import ReplayOptions, parse_policy_args
    from experiments.progress import terminal_progress
    from experiments.replay import replay as run_replay

    chosen: dict[str, Any] = {}
    for group in (
        policy_options,
        read_options,
        row_options,
        client_options,
        device_options,
        real_options,
        scheduler_options,
    ):
        chosen |= vars(group)
    policy_args = parse_policy_args(chosen.pop("policy_arg") or [])
    options = ReplayOptions(trace, out, mode=mode, force=force, seed=seed, policy_args=policy_args, **chosen)
    _print_result(options, run_replay(options, terminal_progress))


def _print_result(options: ReplayOptions, result: ReplayResult) -> None:
    from analysis.table import print_comparison
    from tinyllm.engine.record.reader import read_run

    run = read_run(result.directory)
    print_comparison([run])
    for warning in result.warnings:
        typer.echo(f"warning: {warning}", err=True)
    dropped = "".join(f", {count:,} dropped ({reason})" for reason, count in result.dropped.items())
    reasons = run.requests["finish_reason"].value_counts()
    ended = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
    typer.echo(f"Trace: {result.rows_in:,} rows, {result.num_requests:,} replayed{dropped}. Ended: {ended}.")
    if result.run_time_s > 0 and result.num_steps:
        typer.echo(
            f"Clock: {result.clock_s:,.1f} s in {result.num_steps:,} steps, "
            f"run in {result.run_time_s:.2f} s ({result.run_time_s / result.num_steps * 1e6:.0f} µs a step)."
        )
    typer.echo(f"Log: {result.directory}   (tinyllm report {result.directory})")
