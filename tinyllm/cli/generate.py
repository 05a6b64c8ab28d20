"""`tinyllm generate`: prompts through the real engine, text out."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tinyllm.cli import engine_options as engine
from tinyllm.errors import IncompleteRunError, InputError

if TYPE_CHECKING:
    from tinyllm.engine.llm_engine import RequestOutput

_SAMPLING = "Sampling"


def generate(
    model: engine.ModelArgument,
    prompt: Annotated[list[str] | None, typer.Option(help="Text to continue; repeatable.")] = None,
    chat: Annotated[
        list[str] | None, typer.Option(help="Message to answer, by the chat template; repeatable.")
    ] = None,
    # ── sampling
    max_tokens: Annotated[int, typer.Option(help="Output tokens at most.", rich_help_panel=_SAMPLING)] = 128,
    min_tokens: Annotated[int, typer.Option(help="Output tokens at least.", rich_help_panel=_SAMPLING)] = 0,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=_SAMPLING)] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 is off.", rich_help_panel=_SAMPLING)] = 0,
    top_p: Annotated[float, typer.Option(help="1 is off.", rich_help_panel=_SAMPLING)] = 1.0,
    min_p: Annotated[float, typer.Option(help="0 is off.", rich_help_panel=_SAMPLING)] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="1 is off.", rich_help_panel=_SAMPLING)] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="0 is off.", rich_help_panel=_SAMPLING)] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="0 is off.", rich_help_panel=_SAMPLING)] = 0.0,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="Text that ends the output; repeatable.", rich_help_panel=_SAMPLING),
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", rich_help_panel=_SAMPLING)] = False,
    seed: Annotated[
        int | None, typer.Option(help="Makes sampling repeatable.", rich_help_panel=_SAMPLING)
    ] = None,
    # ── engine
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
    policy: engine.PolicyOption = "fcfs",
    policy_arg: engine.PolicyArgOption = None,
) -> None:
    """Continue texts or answer messages with a model; a single one is streamed.

    Example: tinyllm generate models/smollm2-135m --chat "What is the capital of France?"
    """
    if bool(prompt) == bool(chat):
        raise InputError('generate: give --prompt TEXT or --chat TEXT, for instance --chat "Who are you?"')

    from experiments.options import parse_policy_args
    from tinyllm.engine.llm import LLM
    from tinyllm.engine.sampling_params import SamplingParams

    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        seed=seed,
    )
    llm = LLM(
        model,
        device=device,
        dtype=dtype,
        attention=attention,
        policy=policy,
        policy_args=parse_policy_args(policy_arg or []),
        gpu_memory_utilization=gpu_memory_utilization,
        enable_prefix_caching=enable_prefix_caching,
        num_gpu_blocks=num_gpu_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
    )
    if chat:
        outputs = llm.stream_chat([[{"role": "user", "content": text}] for text in chat], params)
    else:
        outputs = llm.stream(prompt or [], params)
    _show(outputs, chat or prompt or [])


def _show(outputs: Iterator[RequestOutput], texts: list[str]) -> None:
    """Print the outputs to standard output, what is about them to standard error."""
    started = time.perf_counter()
    finished: list[RequestOutput] = []
    for output in outputs:
        if len(texts) == 1:
            sys.stdout.write(output.delta)
            sys.stdout.flush()
        if output.finished:
            finished.append(output)
    elapsed = time.perf_counter() - started
    finished.sort(key=lambda output: int(output.request_id))
    if len(texts) > 1:
        for text, output in zip(texts, finished, strict=True):
            typer.echo(f"── {text}\n{output.text if output.error is None else f'error: {output.error}'}\n")
    elif finished[0].error is None:
        typer.echo()
    num_prompt = sum(len(output.prompt_token_ids) for output in finished)
    num_output = sum(len(output.token_ids) for output in finished)
    _raise_errors(finished)
    typer.echo(
        f"[{num_prompt:,} prompt tokens, {num_output:,} output tokens in {elapsed:.2f} s: "
        f"{num_output / elapsed:.1f} tokens/s]",
        err=True,
    )


def _raise_errors(finished: list[RequestOutput]) -> None:
    errors = [output for output in finished if output.error is not None]
    if not errors:
        return
    if len(finished) == 1:
        raise InputError(f"generate: {errors[0].error}")
    raise IncompleteRunError(f"generate: {len(errors)} of {len(finished)} prompts failed; see above")
