"""`tinyllm cost`: what one step costs, term by term, and how many KV blocks fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tinyllm.errors import InputError

if TYPE_CHECKING:
    from sim.cost import CostModel, StepSums


def cost(
    gpu: Annotated[str | None, typer.Option(help="GPU by name: h100, h200, a100.")] = None,
    model_shape: Annotated[str | None, typer.Option(help="Model by name, or a config.json.")] = None,
    cost_model: Annotated[
        str | None, typer.Option(help="In place of the two: a JSON file, or yardstick.")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallel degree.")] = 1,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    prefill_tokens: Annotated[int, typer.Option(min=0, help="Tokens of one prompt, from its start.")] = 0,
    decode_seqs: Annotated[int, typer.Option(min=0, help="Decoding sequences.")] = 1,
    context: Annotated[int, typer.Option(min=1, help="Tokens of context of each of them.")] = 1024,
    gpu_memory_utilization: Annotated[float, typer.Option(help="Share of GPU memory to use.")] = 0.9,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens of a KV block.")] = 16,
) -> None:
    """Print the time of one engine step by term, and the KV blocks that fit.

    Example: tinyllm cost --gpu h100 --model-shape llama-3.1-8b --decode-seqs 64 --context 2000
    """
    from sim.cost import RooflineCostModel, StepSums, load_cost_model
    from sim.hardware import gpu_by_name
    from sim.memory import num_gpu_blocks
    from sim.shapes import shape_by_name

    if (cost_model is None) == (gpu is None) or (gpu is None) != (model_shape is None):
        raise InputError("cost: give either --cost-model, or both --gpu and --model-shape")
    if not prefill_tokens + decode_seqs:
        raise InputError("cost: the step is empty; give --prefill-tokens or --decode-seqs over 0")
    prefill = [(prefill_tokens, 0)] if prefill_tokens else []
    step = StepSums.from_rows(decode=[context] * decode_seqs, prefill=prefill)
    if gpu is None or model_shape is None:
        _print_step(load_cost_model(str(cost_model)), step)
        return
    device, shape = gpu_by_name(gpu), shape_by_name(model_shape)
    _print_step(RooflineCostModel(device, shape, dtype=dtype, tp=tp), step)
    blocks = num_gpu_blocks(
        device,
        shape,
        dtype=dtype,
        tp=tp,
        gpu_memory_utilization=gpu_memory_utilization,
        block_size=block_size,
    )
    typer.echo(f"{'num_gpu_blocks':<20}{blocks:>12,}   ({blocks * block_size:,} tokens)")


def _print_step(model: CostModel, step: StepSums) -> None:
    total = model.step_ns(step) / 1e9
    for term, seconds in model.breakdown(step).items():
        typer.echo(f"{term:<20}{seconds * 1e3:>12.4f} ms {seconds / total:>6.1%}")
    typer.echo(f"{'step':<20}{total * 1e3:>12.4f} ms")
    typer.echo(f"{'gap':<20}{model.gap_ns(step) / 1e6:>12.4f} ms")
