"""`tinyllm compare`: token agreement with another engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tinyllm.cli.engine_options import EngineOptions, ModelArgument
from tinyllm.cli.option_groups import with_option_groups
from tinyllm.errors import IncompleteRunError

if TYPE_CHECKING:
    from experiments.compare import Agreement


@with_option_groups
def compare(
    model: ModelArgument,
    engine_options: EngineOptions,
    backend: Annotated[str, typer.Option(help="The reference: transformers or vllm.")] = "transformers",
    prompts: Annotated[
        Path | None, typer.Option(help="One prompt a line, or .jsonl with `prompt`; default: built in.")
    ] = None,
    num_prompts: Annotated[int, typer.Option(help="Prompts at most.")] = 32,
    max_tokens: Annotated[int, typer.Option(help="Output tokens of each at most.")] = 64,
) -> None:
    """Generate greedily with this engine and with another, and list where they first differ.

    A difference counts if the reference's two likeliest tokens were more than 0.001 apart there.

    Example: tinyllm compare models/smollm2-135m --backend transformers
    """
    from experiments.compare import compare as compare_engines

    agreement = compare_engines(
        model,
        backend,
        prompts_file=prompts,
        num_prompts=num_prompts,
        max_tokens=max_tokens,
        track=_bar(f"{backend}, prompts"),
        **vars(engine_options),
    )
    _print_agreement(agreement, backend)


def _bar(description: str) -> Any:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return lambda prompts: track(
        prompts, description, console=console, transient=True, disable=not console.is_terminal
    )


def _print_agreement(agreement: Agreement, backend: str) -> None:
    for difference in agreement.differences:
        typer.echo(
            f"prompt {difference.prompt} ({agreement.prompt_lengths[difference.prompt]} tokens): output token "
            f"{difference.position} is {difference.ours}, {backend} has {difference.reference}, margin "
            f"{difference.margin:.2g}: {'counts' if difference.counts else 'a tie up to rounding'}"
        )
    num_prompts = len(agreement.prompt_lengths)
    num_ties = sum(not difference.counts for difference in agreement.differences)
    summary = (
        f"{agreement.num_agreeing}/{num_prompts} prompts agree with {backend} "
        f"({min(agreement.prompt_lengths):,} to {max(agreement.prompt_lengths):,} prompt tokens, "
        f"{agreement.num_tokens:,} output tokens, {num_ties} ties)"
    )
    if agreement.num_agreeing < num_prompts:
        raise IncompleteRunError(summary)
    typer.echo(summary)
