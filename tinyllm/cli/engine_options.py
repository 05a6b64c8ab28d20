"""Options of the real engine, shared by the commands that load a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_ENGINE = "Engine"
_POLICY = "Policy"

ModelArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Model directory (tinyllm get-model brings one).")
]
DeviceOption = Annotated[str, typer.Option(help="cpu or cuda.", rich_help_panel=_ENGINE)]
DtypeOption = Annotated[
    str, typer.Option(help="float32 or, experimental, bfloat16.", rich_help_panel=_ENGINE)
]
AttentionOption = Annotated[
    str, typer.Option(help="Attention backend; auto: the fastest.", rich_help_panel=_ENGINE)
]
NumGpuBlocksOption = Annotated[
    int | None, typer.Option(help="KV blocks; default: what fits the memory.", rich_help_panel=_ENGINE)
]
GpuMemoryUtilizationOption = Annotated[
    float | None,
    typer.Option(
        help="Share of free memory for weights and KV (default cuda 0.9, cpu 0.3).", rich_help_panel=_ENGINE
    ),
]
BlockSizeOption = Annotated[
    int | None, typer.Option(help="Tokens of a KV block (default 16).", rich_help_panel=_ENGINE)
]
MaxNumSeqsOption = Annotated[
    int | None, typer.Option(help="Running requests at most (default 256).", rich_help_panel=_ENGINE)
]
MaxNumBatchedTokensOption = Annotated[
    int | None, typer.Option(help="Token budget of a step (default 2048).", rich_help_panel=_ENGINE)
]
MaxModelLenOption = Annotated[
    int | None, typer.Option(help="Context; default: the model's.", rich_help_panel=_ENGINE)
]
EnablePrefixCachingOption = Annotated[
    bool, typer.Option(help="Share the KV of equal beginnings.", rich_help_panel=_ENGINE)
]
PolicyOption = Annotated[
    str, typer.Option(help="A policy by name (docs/policies.md), or module:Class.", rich_help_panel=_POLICY)
]
PolicyArgOption = Annotated[
    list[str] | None, typer.Option(help="key=value for the policy; repeatable.", rich_help_panel=_POLICY)
]
