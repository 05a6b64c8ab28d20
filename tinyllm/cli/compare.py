"""`tinyllm compare`: token agreement with another engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tinyllm.cli import engine_options as engine
from tinyllm.errors import IncompleteRunError

if TYPE_CHECKING:
    from experiments.compare import Agreement


def compare(
    model: engine.ModelArgument,
    backend: Annotated[str, typer.Option(help="The reference: transformers.")] = "transformers",
    prompts: Annotated[
        Path | None, typer.Option(help="One prompt a line, or .jsonl with `prompt`; default: built in.")
    ] = None,
    num_prompts: Annotated[int, typer.Option(help="Prompts at most.")] = 32,
    max_tokens: Annotated[int, typer.Option(help="Output tokens of each at most.")] = 64,
    device: engine.DeviceOption = "cpu",
    dtype: engine.DtypeOption = "float32",
    attention: engine.AttentionOption = "auto",
    num_gpu_blocks: engine.NumGpuBlocksOption = None,
    gpu_memory_utilization: engine.GpuMemoryUtilizationOption = None,
    block_size: engine.BlockSizeOption = None,
    max_num_seqs: engine.MaxNumSeqsOption = None,
    max_num_batched_tokens: engine.MaxNumBatchedTokensOption = None,
    max_model_len: engine.MaxModelLenOption = None,
    enable_prefix_caching: engine.EnablePrefixCachingOption = True,
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
        device=device,
        dtype=dtype,
        track=_bar(f"{backend}, prompts"),
        attention=attention,
        num_gpu_blocks=num_gpu_blocks,
        gpu_memory_utilization=gpu_memory_utilization,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        enable_prefix_caching=enable_prefix_caching,
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
