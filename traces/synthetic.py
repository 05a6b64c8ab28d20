"""One entry to the generators, from the options of `tinyllm trace generate`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tinyllm.errors import InputError
from traces.arrivals import parse_arrivals
from traces.conversations import Conversations, generate_conversations
from traces.generate import generate
from traces.lengths import parse_lengths
from traces.schema import Trace
from traces.servegen import generate_clients

REQUESTS: Final = 1_000


@dataclass(frozen=True)
class SyntheticOptions:
    """Named as the options of the command line, which documents them."""

    preset: str = "burstgpt-like"
    requests: int | None = None
    rate: float | None = None
    cv: float | None = None
    arrivals: str | None = None
    clients: Path | None = None
    conversations: bool = False
    turns: float = 3.13
    think: float = 144.0
    prompt_lengths: str | None = None
    output_lengths: str | None = None
    failure_share: float = 0.0
    seed: int = 0


def make_synthetic(options: SyntheticOptions) -> Trace:
    """The trace of `--clients`, of `--conversations`, else of a preset.

    Raises:
        InputError: as the generators do; options of different generators together.
    """
    if options.clients is not None:
        _refuse(options, "--clients", "conversations", "arrivals", "cv", "failure_share")
        return _of_clients(options, options.clients)
    if options.conversations:
        _refuse(options, "--conversations", "cv", "failure_share")
        return _of_conversations(options)
    return generate(
        options.preset,
        requests=REQUESTS if options.requests is None else options.requests,
        seed=options.seed,
        rate=options.rate,
        cv=options.cv,
        arrivals=parse_arrivals(options.arrivals) if options.arrivals else None,
        prompt=parse_lengths(options.prompt_lengths) if options.prompt_lengths else None,
        output=parse_lengths(options.output_lengths) if options.output_lengths else None,
        failure_share=options.failure_share,
    )


def _of_clients(options: SyntheticOptions, clients: Path) -> Trace:
    return generate_clients(
        clients,
        seed=options.seed,
        requests=options.requests,
        rate=options.rate,
        prompt=parse_lengths(options.prompt_lengths) if options.prompt_lengths else None,
        output=parse_lengths(options.output_lengths) if options.output_lengths else None,
    )


def _of_conversations(options: SyntheticOptions) -> Trace:
    shape = Conversations(turns=options.turns, think=options.think)
    if options.prompt_lengths:
        lengths = parse_lengths(options.prompt_lengths)
        shape = replace(shape, first=lengths, message=lengths)
    if options.output_lengths:
        shape = replace(shape, output=parse_lengths(options.output_lengths))
    return generate_conversations(
        shape,
        requests=REQUESTS if options.requests is None else options.requests,
        seed=options.seed,
        rate=0.1 if options.rate is None else options.rate,
        arrivals=parse_arrivals(options.arrivals) if options.arrivals else None,
    )


def _refuse(options: SyntheticOptions, with_option: str, *names: str) -> None:
    for name in names:
        if getattr(options, name) != getattr(SyntheticOptions, name):
            raise InputError(f"--{name.replace('_', '-')}: does not go with {with_option}; give one of them")
