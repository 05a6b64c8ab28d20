"""What a replay is asked to do: one name for every option, the same here, on the command line and in configs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tinyllm.errors import InputError
from tinyllm.policy.config import SchedulerConfig


@dataclass(frozen=True)
class ReplayOptions:
    """The options of `tinyllm replay`. None means: decided by the cost model, the model shape or the default.

    Attributes are named as the options of the command line, which documents them.
    """

    trace: Path
    out: Path
    mode: str = "sim"
    force: bool = False
    seed: int = 0
    # the trace
    format: str | None = None
    columns: str | None = None
    unit: str | None = None
    prefix_block_size: int | None = None
    order: str = "error"
    window: str | None = None
    requests: int | None = None
    thin: float | None = None
    spread_ticks: float | None = None
    superpose: str | None = None
    idle_cap: float | None = None
    speedup: float | None = None
    rate: float | None = None
    length_scale: float | None = None
    zero_output: str = "drop"
    over_context: str = "refuse"
    # what clients do
    sessions: str = "open"
    think_time: float | None = None
    client_timeout: float | None = None
    # what clients declare and predictors guess
    declared_max_tokens: str = "target"
    predictor: str = "none"
    refresh_predictions: int | None = None
    ttft_slo: float | None = None
    e2e_slo: float | None = None
    warmup_requests: int = 0
    # the policy
    policy: str = "fcfs"
    policy_args: Mapping[str, Any] = field(default_factory=dict)
    # the engine
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    num_gpu_blocks: int | None = None
    max_model_len: int | None = None
    long_prefill_token_threshold: int | None = None
    cap_lone_prefill: bool | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    register_blocks: str | None = None
    admission: str | None = None
    watermark: float | None = None
    preemption: str | None = None
    num_cpu_blocks: int | None = None
    swap_space: float = 4.0
    batching: str | None = None
    max_num_prefill_tokens: int | None = None
    max_num_decode_tokens: int | None = None
    max_num_partial_prefills: int | None = None
    tpot_slo: float | None = None
    step_estimate: str | None = None
    max_queued_requests: int | None = None
    early_rejection: str | None = None
    # the simulated device
    cost_model: str | None = None
    gpu: str | None = None
    model_shape: str | None = None
    tp: int = 1
    # the simulated or real device
    dtype: str | None = None
    gpu_memory_utilization: float | None = None
    # the real model
    model: Path | None = None
    device: str = "cpu"
    attention: str = "auto"
    eos: str = "ignore"
    corpus: Path | None = None
    max_lag_share: float = 0.05
    # vLLM
    vllm_python: Path | None = None

    def engine_options(self) -> dict[str, Any]:
        """The scheduler's options that were given."""
        names = [field.name for field in fields(SchedulerConfig)]
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def parse_policy_args(arguments: Sequence[str]) -> dict[str, Any]:
    """`key=value` texts to keyword arguments: values are JSON (`2`, `0.5`, `false`), anything else is text.

    Raises:
        InputError: not of this form, or a key twice.
    """
    parsed: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or not key.isidentifier():
            raise InputError(f"--policy-arg {argument}: write key=value, for instance output_weight=2")
        if key in parsed:
            raise InputError(f"--policy-arg {key}: given twice")
        try:
            parsed[key] = json.loads(text)
        except ValueError:
            parsed[key] = text
    return parsed
