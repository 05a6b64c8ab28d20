"""Options of the real engine, shared by the commands that load a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

ModelArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Model directory (tinyllm get-model brings one).")
]


def _option(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Engine")


@dataclass(frozen=True)
class EngineOptions:
    """What `tinyllm.engine.llm.LLM` takes beside the model and the policy; None is decided there."""

    device: Annotated[str, _option("cpu or cuda.")] = "cpu"
    dtype: Annotated[str, _option("float32 or, experimental, bfloat16.")] = "float32"
    attention: Annotated[str, _option("Attention backend; auto: the fastest.")] = "auto"
    num_gpu_blocks: Annotated[int | None, _option("KV blocks; default: what fits the memory.")] = None
    gpu_memory_utilization: Annotated[
        float | None, _option("Share of free memory for weights and KV (default cuda 0.9, cpu 0.3).")
    ] = None
    block_size: Annotated[int | None, _option("Tokens of a KV block (default 16).")] = None
    max_num_seqs: Annotated[int | None, _option("Running requests at most (default 256).")] = None
    max_num_batched_tokens: Annotated[int | None, _option("Token budget of a step (default 2048).")] = None
    max_model_len: Annotated[int | None, _option("Context; default: the model's.")] = None
    enable_prefix_caching: Annotated[bool, _option("Share the KV of equal beginnings.")] = True
