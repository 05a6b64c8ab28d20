"""The options of `tinyllm bench` that say what is run, and in which size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True)
class BenchRunOptions:
    """Size, requests and engines of a run: fields of `experiments.bench.options.BenchOptions`."""

    length_scale: Annotated[
        float, typer.Option("--length-scale", help="Multiply lengths by this, rounding up.")
    ] = 1.0
    requests: Annotated[int | None, typer.Option("--requests", help="Requests of each workload at most.")] = (
        None
    )
    shards: Annotated[int | None, typer.Option("--shards", help="Shards of each cohort at most.")] = None
    repeats: Annotated[int | None, typer.Option("--repeats", help="Default: the suite's.")] = None
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", help="Of the windows; default: Azure's in $TINYLLM_TRACES, else a generated one."
        ),
    ] = None
    seed: Annotated[int, typer.Option("--seed", help="Of lengths, tokens and arrivals.")] = 0
    dtype: Annotated[str, typer.Option("--dtype", help="Of weights and KV cache.")] = "float32"
    num_gpu_blocks: Annotated[
        int | None,
        typer.Option("--num-gpu-blocks", help="KV blocks of 16 tokens; default: what the suite needs."),
    ] = None
    vllm_python: Annotated[
        Path | None,
        typer.Option("--vllm-python", help="Python that has vLLM; default: that of make peer-vllm."),
    ] = None
