"""Groups of options of `tinyllm replay`, as its help shows them; fields of `experiments.options.ReplayOptions`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tinyllm.cli import trace_options

_DEVICE = "Simulated device"
_REAL = "Real model"
_POLICY = "Policy"
_TRACE = "Trace"

PolicyOption = Annotated[
    str, typer.Option(help="A policy by name (docs/policies.md), or module:Class.", rich_help_panel=_POLICY)
]
PolicyArgOption = Annotated[
    list[str] | None, typer.Option(help="key=value for the policy; repeatable.", rich_help_panel=_POLICY)
]
_CLIENTS = "Clients"


@dataclass
class PolicyOptions:
    """Which policy, and what it is told."""

    policy: PolicyOption = "fcfs"
    policy_arg: PolicyArgOption = None
    predictor: Annotated[
        str,
        typer.Option(
            help="Output lengths that policies see: none, perfect, lognormal:SIGMA, "
            "buckets:WIDTH:ACCURACY, tau:KENDALL, biased:BIAS.",
            rich_help_panel=_POLICY,
        ),
    ] = "none"
    refresh_predictions: Annotated[
        int | None,
        typer.Option(help="Predict anew after every N output tokens.", rich_help_panel=_POLICY),
    ] = None
    ttft_slo: Annotated[
        float | None,
        typer.Option(help="First token due so many s after the arrival.", rich_help_panel=_POLICY),
    ] = None
    e2e_slo: Annotated[
        float | None,
        typer.Option(help="Last token due so many s after the arrival.", rich_help_panel=_POLICY),
    ] = None
    declared_max_tokens: Annotated[
        str,
        typer.Option(
            help="What clients declare: target, context, a number, or 1.5x.", rich_help_panel=_POLICY
        ),
    ] = "target"


@dataclass
class RowOptions:
    """Which rows of the trace are replayed, and what is done to them."""

    window: trace_options.WindowOption = None
    requests: trace_options.RequestsOption = None
    thin: trace_options.ThinOption = None
    spread_ticks: trace_options.SpreadTicksOption = None
    superpose: trace_options.SuperposeOption = None
    idle_cap: trace_options.IdleCapOption = None
    speedup: trace_options.SpeedupOption = None
    rate: trace_options.RateOption = None
    length_scale: trace_options.LengthScaleOption = None
    zero_output: trace_options.ZeroOutputOption = "drop"
    over_context: trace_options.OverContextOption = "refuse"
    warmup_requests: Annotated[
        int, typer.Option(help="The first N are served and left out of statistics.", rich_help_panel=_TRACE)
    ] = 0


@dataclass
class ClientOptions:
    """When the turns of conversations come, and how long clients wait."""

    sessions: Annotated[
        str,
        typer.Option(
            help="Later turns: open, at their recorded times; closed, after the turn before them and a think time.",
            rich_help_panel=_CLIENTS,
        ),
    ] = "open"
    think_time: Annotated[
        float | None,
        typer.Option(
            help="Seconds from an answer to the next turn (default: the trace's; closed only).",
            rich_help_panel=_CLIENTS,
        ),
    ] = None
    client_timeout: Annotated[
        float | None,
        typer.Option(
            help="Clients take back a request that has not ended after so many s.", rich_help_panel=_CLIENTS
        ),
    ] = None


@dataclass
class DeviceOptions:
    """What the simulated device is, and what either device is used for."""

    gpu: Annotated[str | None, typer.Option(help="h100, h200 or a100.", rich_help_panel=_DEVICE)] = None
    model_shape: Annotated[
        str | None, typer.Option(help="Model by name, or a config.json.", rich_help_panel=_DEVICE)
    ] = None
    cost_model: Annotated[
        str | None,
        typer.Option(help="In place of --gpu: a JSON file, or yardstick.", rich_help_panel=_DEVICE),
    ] = None
    tp: Annotated[int, typer.Option(help="Tensor parallel degree.", rich_help_panel=_DEVICE)] = 1
    dtype: Annotated[
        str | None,
        typer.Option(
            help="bfloat16, float16 or float32 (default sim bfloat16, real float32).", rich_help_panel=_DEVICE
        ),
    ] = None
    gpu_memory_utilization: Annotated[
        float | None, typer.Option(help="Share of memory to use (default gpu 0.9).", rich_help_panel=_DEVICE)
    ] = None


@dataclass
class RealOptions:
    """What --mode real needs."""

    model: Annotated[
        Path | None, typer.Option(help="Checkpoint directory for --mode real.", rich_help_panel=_REAL)
    ] = None
    device: Annotated[str, typer.Option(help="cpu or cuda.", rich_help_panel=_REAL)] = "cpu"
    attention: Annotated[
        str, typer.Option(help="Attention backend: auto, reference …", rich_help_panel=_REAL)
    ] = "auto"
    eos: Annotated[
        str,
        typer.Option(help="ignore: the trace's output lengths; stop: the model's.", rich_help_panel=_REAL),
    ] = "ignore"
    corpus: Annotated[
        Path | None,
        typer.Option(help="Text that prompts are cut from; default: a built-in.", rich_help_panel=_REAL),
    ] = None
    max_lag_share: Annotated[
        float, typer.Option(help="Submission lag over this share of TTFT: invalid.", rich_help_panel=_REAL)
    ] = 0.05
    vllm_python: Annotated[
        Path | None,
        typer.Option(
            help="--mode vllm: a Python that has vLLM (default: what make peer-vllm makes).",
            rich_help_panel=_REAL,
        ),
    ] = None
