"""`tinyllm compare`: do two engines, given the same weights and prompts, choose the same tokens?"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from experiments.backends import backend_class
from experiments.backends.base import GreedyOutput
from experiments.corpus import corpus_text
from tinyllm.engine.llm import LLM
from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.errors import InputError

MIN_MARGIN: Final = 1e-3
"""Below it, the reference's two likeliest tokens are equal up to rounding, and either choice is right."""

LONGEST_PROMPT: Final = 2000
_SHORTEST_PROMPT: Final = 16
_OFFSET_STEP: Final = 613

Track = Callable[[Sequence[list[int]]], Iterable[list[int]]]
"""Passes prompts on and shows how far it has come."""


@dataclass(frozen=True)
class Difference:
    """The first token in which an output differs from the reference's.

    Attributes:
        prompt: index of the prompt.
        position: index of the output token.
        ours, reference: the two tokens; None where an output has ended.
        margin: the reference's, between its two likeliest tokens there; infinite where it has ended.
    """

    prompt: int
    position: int
    ours: int | None
    reference: int | None
    margin: float

    @property
    def counts(self) -> bool:
        """Whether rounding can't explain it."""
        return not self.margin <= MIN_MARGIN


@dataclass(frozen=True)
class Agreement:
    """The outcome of a comparison.

    Attributes:
        prompt_lengths: tokens of each prompt.
        num_tokens: output tokens of the reference.
        differences: at most one a prompt, in their order.
    """

    prompt_lengths: list[int]
    num_tokens: int
    differences: list[Difference]

    @property
    def num_agreeing(self) -> int:
        """Prompts without a difference that counts."""
        return len(self.prompt_lengths) - sum(difference.counts for difference in self.differences)


def compare(
    model: Path,
    backend: str,
    *,
    prompts_file: Path | None = None,
    num_prompts: int = 32,
    max_tokens: int = 64,
    device: str = "cpu",
    dtype: str = "float32",
    track: Track = iter,
    **engine_options: Any,
) -> Agreement:
    """Run the same prompts greedily through our engine, all in one batch, and through another, one by one.

    Args:
        prompts_file: see `read_prompts`; None cuts prompts from a text of our own, see `cut_prompts`.
        track: progress of the other engine.
        engine_options: of `LLM`.

    Raises:
        InputError: a wrong model directory, backend, option or prompt.
    """
    for option, value in (("num-prompts", num_prompts), ("max-tokens", max_tokens)):
        if value < 1:
            raise InputError(f"--{option} {value}: give at least 1")
    make_reference = backend_class(backend)
    llm = LLM(model, device=device, dtype=dtype, **engine_options)
    room = llm.engine.max_model_len - max_tokens
    if prompts_file is None:
        prompts = cut_prompts(llm.encode(corpus_text()), num_prompts, min(LONGEST_PROMPT, room))
    else:
        prompts = [llm.encode(text) for text in read_prompts(prompts_file)[:num_prompts]]
        _check_lengths(prompts, prompts_file, room)
    outputs = llm.generate(prompts, SamplingParams(max_tokens=max_tokens, temperature=0.0))
    if failed := next((output for output in outputs if output.error is not None), None):
        raise InputError(f"compare: prompt {failed.request_id} can't be run: {failed.error}")
    reference = make_reference(model, device=device, dtype=dtype)
    eos_token_ids = llm.engine.model_config.eos_token_ids
    expected = [reference.generate(prompt, max_tokens, eos_token_ids) for prompt in track(prompts)]
    found = [first_difference(i, output.token_ids, expected[i]) for i, output in enumerate(outputs)]
    return Agreement(
        [len(prompt) for prompt in prompts],
        sum(len(output.token_ids) for output in expected),
        [difference for difference in found if difference is not None],
    )


def first_difference(prompt: int, ours: Sequence[int], reference: GreedyOutput) -> Difference | None:
    """Where an output first differs from the reference's, if anywhere."""
    theirs = reference.token_ids
    for position in range(max(len(ours), len(theirs))):
        our_token = ours[position] if position < len(ours) else None
        their_token = theirs[position] if position < len(theirs) else None
        if our_token != their_token:
            margin = float("inf") if their_token is None else reference.margins[position]
            return Difference(prompt, position, our_token, their_token, margin)
    return None


def cut_prompts(corpus: Sequence[int], num_prompts: int, longest: int) -> list[list[int]]:
    """Prompts of 16 to `longest` tokens, evenly spread on a logarithmic scale, each from another place of the
    corpus, which is read in a circle."""
    shortest = min(_SHORTEST_PROMPT, longest)
    prompts = []
    for number in range(num_prompts):
        share = number / max(num_prompts - 1, 1)
        length = round(shortest ** (1 - share) * longest**share)
        start = number * _OFFSET_STEP
        prompts.append([corpus[i % len(corpus)] for i in range(start, start + length)])
    return prompts


def read_prompts(path: Path) -> list[str]:
    """Prompts of a file: JSON lines with a `prompt` each (`.jsonl`), or else plain text, one a line.

    Raises:
        InputError: it can't be read, a line is wrong, or there is no prompt in it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--prompts {path}: can't be read as text ({error}); give another file") from None
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise InputError(f"--prompts {path}: holds no prompt; write one a line")
    if path.suffix != ".jsonl":
        return [line for _, line in numbered]
    return [_prompt_of(path, number, line) for number, line in numbered]


def _prompt_of(path: Path, number: int, line: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError):
        prompt = None
    if not isinstance(prompt, str) or not prompt:
        raise InputError(f'--prompts {path}: line {number}: write {{"prompt": "…"}}')
    return prompt


def _check_lengths(prompts: Sequence[Sequence[int]], path: Path, room: int) -> None:
    for number, prompt in enumerate(prompts, start=1):
        if not 1 <= len(prompt) <= room:
            raise InputError(
                f"--prompts {path}: prompt {number} has {len(prompt)} tokens; give 1 to {room}, "
                "which leaves room for --max-tokens in the context"
            )
