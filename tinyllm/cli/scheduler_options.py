"""Options of the scheduler, a group of `tinyllm replay`. None: the device or the default decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

_ENGINE = "Engine"
_BATCHING = "What a step may hold"
_ADMISSION = "Who is admitted, and who gives way"


def _option(text: str, panel: str) -> Any:
    return typer.Option(help=text, rich_help_panel=panel)


@dataclass
class SchedulerOptions:
    """Fields of `tinyllm.policy.SchedulerConfig`, and `swap_space`, from which one of them follows."""

    num_gpu_blocks: Annotated[int | None, _option("KV blocks; default: what fits the device.", _ENGINE)] = (
        None
    )
    block_size: Annotated[int | None, _option("Tokens of a KV block (default 16).", _ENGINE)] = None
    max_num_seqs: Annotated[int | None, _option("Running requests at most (default 256).", _ENGINE)] = None
    max_num_batched_tokens: Annotated[
        int | None, _option("Token budget of a step (default 2048).", _ENGINE)
    ] = None
    max_model_len: Annotated[int | None, _option("Context; default: the model's.", _ENGINE)] = None
    enable_prefix_caching: Annotated[
        bool | None, _option("Share full blocks (default: if the trace says what prompts share).", _ENGINE)
    ] = None
    register_blocks: Annotated[
        str | None,
        _option("When others can hit a full block: computed (default) or scheduled (vLLM).", _ENGINE),
    ] = None
    # ── what a step may hold
    batching: Annotated[
        str | None,
        _option("mixed (default), take-back (vLLM's priority), prefill-first or static.", _BATCHING),
    ] = None
    enable_chunked_prefill: Annotated[
        bool | None, _option("Prompts over several steps (default yes).", _BATCHING)
    ] = None
    long_prefill_token_threshold: Annotated[
        int | None, _option("Tokens of one prefill chunk at most (default 0: no limit).", _BATCHING)
    ] = None
    cap_lone_prefill: Annotated[
        bool | None,
        _option("That limit also for the only request there is (default yes; vLLM no).", _BATCHING),
    ] = None
    max_num_prefill_tokens: Annotated[
        int | None, _option("Prefill tokens of a step at most (default the budget).", _BATCHING)
    ] = None
    max_num_decode_tokens: Annotated[
        int | None, _option("Decode tokens of a step at most (default the budget).", _BATCHING)
    ] = None
    max_num_partial_prefills: Annotated[
        int | None, _option("Unfinished prompts among the running requests at most.", _BATCHING)
    ] = None
    tpot_slo: Annotated[
        float | None,
        _option(
            "Seconds from token to token: prefill chunks shrink to keep to it (--step-estimate).", _BATCHING
        ),
    ] = None
    # ── who is admitted, and who gives way
    admission: Annotated[
        str | None,
        _option("first-chunk (default), prompt-fits (vLLM), full-prompt or reserve-output.", _ADMISSION),
    ] = None
    watermark: Annotated[
        float | None, _option("Share of the pool that admissions leave free (default 0).", _ADMISSION)
    ] = None
    max_queued_requests: Annotated[
        int | None, _option("Waiting requests at most; more are refused.", _ADMISSION)
    ] = None
    early_rejection: Annotated[
        str | None,
        _option("none (default), expired or predicted: turn requests away that miss --ttft-slo.", _ADMISSION),
    ] = None
    step_estimate: Annotated[
        str | None,
        _option(
            "Believed step time, BASE:PER_TOKEN:PER_SEQ:PER_CONTEXT_TOKEN in s; the last two may be left out.",
            _ADMISSION,
        ),
    ] = None
    preemption: Annotated[
        str | None, _option("recompute (default), swap (sim only) or never.", _ADMISSION)
    ] = None
    num_cpu_blocks: Annotated[
        int | None, _option("Host blocks for --preemption swap; default: what fits --swap-space.", _ADMISSION)
    ] = None
    swap_space: Annotated[float, _option("Host memory for --preemption swap, GiB.", _ADMISSION)] = 4.0
