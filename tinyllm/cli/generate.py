"""`tinyllm generate`: prompts through the real engine, text out."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tinyllm.cli.engine_options import EngineOptions, ModelArgument
from tinyllm.cli.option_groups import with_option_groups
from tinyllm.cli.replay_options import PolicyArgOption, PolicyOption
from tinyllm.cli.sampling_options import SamplingOptions
from tinyllm.errors import IncompleteRunError, InputError

if TYPE_CHECKING:
    from tinyllm.engine.llm_engine import RequestOutput


@with_option_groups
def generate(
    model: ModelArgument,
    sampling_options: SamplingOptions,
    engine_options: EngineOptions,
    prompt: Annotated[list[str] | None, typer.Option(help="Text to continue; repeatable.")] = None,
    chat: Annotated[
        list[str] | None, typer.Option(help="Message to answer, by the chat template; repeatable.")
    ] = None,
    policy: PolicyOption = "fcfs",
    policy_arg: PolicyArgOption = None,
) -> None:
    """Continue texts or answer messages with a model; a single one is streamed.

    Example: tinyllm generate models/smollm2-135m --chat "What is the capital of France?"
    """
    if bool(prompt) == bool(chat):
        raise InputError('generate: give --prompt TEXT or --chat TEXT, for instance --chat "Who are you?"')

    from experiments.options import parse_policy_args
    from tinyllm.engine.llm import LLM
    from tinyllm.engine.sampling_params import SamplingParams

    sampling = vars(sampling_options)
    params = SamplingParams(**{**sampling, "stop": tuple(sampling["stop"] or ())})
    llm = LLM(model, policy=policy, policy_args=parse_policy_args(policy_arg or []), **vars(engine_options))
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
