"""Options of sampling: fields of `tinyllm.engine.sampling_params.SamplingParams`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer


def _option(text: str | None, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Sampling")


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are drawn, and where outputs end."""

    max_tokens: Annotated[int, _option("Output tokens at most.")] = 128
    min_tokens: Annotated[int, _option("Output tokens at least.")] = 0
    temperature: Annotated[float, _option("0 is greedy.")] = 0.0
    top_k: Annotated[int, _option("0 is off.")] = 0
    top_p: Annotated[float, _option("1 is off.")] = 1.0
    min_p: Annotated[float, _option("0 is off.")] = 0.0
    repetition_penalty: Annotated[float, _option("1 is off.")] = 1.0
    presence_penalty: Annotated[float, _option("0 is off.")] = 0.0
    frequency_penalty: Annotated[float, _option("0 is off.")] = 0.0
    stop: Annotated[list[str] | None, _option("Text that ends the output; repeatable.")] = None
    ignore_eos: Annotated[bool, _option("Go on at the end-of-sequence token.", "--ignore-eos")] = False
    seed: Annotated[int | None, _option("Makes sampling repeatable.")] = None
