"""`tinyllm replay`: a trace through a policy, in simulation or on a real model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tinyllm.cli import trace_options
from tinyllm.cli.config_file import ConfigOption

if TYPE_CHECKING:
    from experiments.options import ReplayOptions
    from experiments.replay import ReplayResult

_DEVICE = "Simulated device"
_REAL = "Real model"
_ENGINE = "Engine"
_POLICY = "Policy"
_TRACE = "Trace"


def replay(
    trace: trace_options.TraceArgument,
    out: Annotated[Path, typer.Option("--out", help="Run directory to write.")],
    config: ConfigOption = None,
    mode: Annotated[str, typer.Option(help="sim: a simulated clock; real: --model on --device.")] = "sim",
    force: Annotated[bool, typer.Option("--force", help="Replace the run in --out.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    # ── policy
    policy: Annotated[
        str,
        typer.Option(help="A policy by name (docs/policies.md), or module:Class.", rich_help_panel=_POLICY),
    ] = "fcfs",
    policy_arg: Annotated[
        list[str] | None,
        typer.Option(help="key=value for the policy; repeatable.", rich_help_panel=_POLICY),
    ] = None,
    predictor: Annotated[
        str,
        typer.Option(
            help="Output lengths that policies see: none, perfect, lognormal:SIGMA, "
            "buckets:WIDTH:ACCURACY, tau:KENDALL, biased:BIAS.",
            rich_help_panel=_POLICY,
        ),
    ] = "none",
    ttft_slo: Annotated[
        float | None,
        typer.Option(help="First token due so many s after the arrival (edf).", rich_help_panel=_POLICY),
    ] = None,
    e2e_slo: Annotated[
        float | None,
        typer.Option(help="Last token due so many s after the arrival (edf).", rich_help_panel=_POLICY),
    ] = None,
    declared_max_tokens: Annotated[
        str,
        typer.Option(
            help="What clients declare: target, context, a number, or 1.5x.", rich_help_panel=_POLICY
        ),
    ] = "target",
    # ── trace
    format: trace_options.FormatOption = None,
    columns: trace_options.ColumnsOption = None,
    unit: trace_options.UnitOption = None,
    prefix_block_size: trace_options.PrefixBlockSizeOption = None,
    order: trace_options.OrderOption = "error",
    window: trace_options.WindowOption = None,
    requests: trace_options.RequestsOption = None,
    thin: trace_options.ThinOption = None,
    spread_ticks: trace_options.SpreadTicksOption = None,
    superpose: trace_options.SuperposeOption = None,
    idle_cap: trace_options.IdleCapOption = None,
    speedup: trace_options.SpeedupOption = None,
    rate: trace_options.RateOption = None,
    length_scale: trace_options.LengthScaleOption = None,
    zero_output: trace_options.ZeroOutputOption = "drop",
    over_context: trace_options.OverContextOption = "refuse",
    warmup_requests: Annotated[
        int, typer.Option(help="The first N are served and left out of statistics.", rich_help_panel=_TRACE)
    ] = 0,
    # ── simulated device
    gpu: Annotated[str | None, typer.Option(help="h100, h200 or a100.", rich_help_panel=_DEVICE)] = None,
    model_shape: Annotated[
        str | None, typer.Option(help="Model by name, or a config.json.", rich_help_panel=_DEVICE)
    ] = None,
    cost_model: Annotated[
        str | None,
        typer.Option(help="In place of --gpu: a JSON file, or yardstick.", rich_help_panel=_DEVICE),
    ] = None,
    tp: Annotated[int, typer.Option(help="Tensor parallel degree.", rich_help_panel=_DEVICE)] = 1,
    # ── either device
    dtype: Annotated[
        str | None,
        typer.Option(
            help="bfloat16, float16 or float32 [sim: bfloat16, real: float32].", rich_help_panel=_DEVICE
        ),
    ] = None,
    gpu_memory_utilization: Annotated[
        float | None, typer.Option(help="Share of memory to use [gpu: 0.9].", rich_help_panel=_DEVICE)
    ] = None,
    # ── real device
    model: Annotated[
        Path | None, typer.Option(help="Checkpoint directory for --mode real.", rich_help_panel=_REAL)
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.", rich_help_panel=_REAL)] = "cpu",
    attention: Annotated[
        str, typer.Option(help="Attention backend: auto, reference …", rich_help_panel=_REAL)
    ] = "auto",
    eos: Annotated[
        str,
        typer.Option(help="ignore: the trace's output lengths; stop: the model's.", rich_help_panel=_REAL),
    ] = "ignore",
    corpus: Annotated[
        Path | None,
        typer.Option(help="Text that prompts are cut from; default: a built-in.", rich_help_panel=_REAL),
    ] = None,
    max_lag_share: Annotated[
        float, typer.Option(help="Submission lag over this share of TTFT: invalid.", rich_help_panel=_REAL)
    ] = 0.05,
    # ── engine
    num_gpu_blocks: Annotated[
        int | None, typer.Option(help="KV blocks; default: what fits the device.", rich_help_panel=_ENGINE)
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens of a KV block [16].", rich_help_panel=_ENGINE)
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Running requests at most [256].", rich_help_panel=_ENGINE)
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Token budget of a step [2048].", rich_help_panel=_ENGINE)
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Context; default: the model shape's.", rich_help_panel=_ENGINE)
    ] = None,
    long_prefill_token_threshold: Annotated[
        int | None,
        typer.Option(help="Tokens of one prefill chunk at most [0: no limit].", rich_help_panel=_ENGINE),
    ] = None,
    enable_chunked_prefill: Annotated[
        bool | None, typer.Option(help="Prompts over several steps [yes].", rich_help_panel=_ENGINE)
    ] = None,
    enable_prefix_caching: Annotated[
        bool | None,
        typer.Option(help="Share full blocks [if the trace has prefix ids].", rich_help_panel=_ENGINE),
    ] = None,
    admission: Annotated[
        str | None,
        typer.Option(help="[first-chunk], full-prompt or reserve-output.", rich_help_panel=_ENGINE),
    ] = None,
    watermark: Annotated[
        float | None,
        typer.Option(help="Share of the pool that admissions leave free [0].", rich_help_panel=_ENGINE),
    ] = None,
    preemption: Annotated[
        str | None, typer.Option(help="[recompute] or never.", rich_help_panel=_ENGINE)
    ] = None,
) -> None:
    """Replay an arrival trace open-loop through a scheduling policy, and write the event log of the run.

    Example: tinyllm replay trace.csv --policy srpt --predictor perfect --gpu h100
    --model-shape llama-3.1-8b --out runs/srpt
    """
    arguments = {name: value for name, value in locals().items() if name not in ("config", "policy_arg")}
    from experiments.options import ReplayOptions, parse_policy_args
    from experiments.progress import terminal_progress
    from experiments.replay import replay as run_replay

    options = ReplayOptions(**arguments, policy_args=parse_policy_args(policy_arg or []))
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
