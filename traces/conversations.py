"""Synthetic conversations: each turn's prompt holds the history, as prompt tokens and as shared prefix ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tinyllm.errors import InputError
from traces.arrivals import ArrivalModel, Poisson
from traces.formats.cells import INT64_MAX
from traces.generate import check_numbers
from traces.lengths import LengthModel, LogNormal
from traces.schema import Provenance, Trace, TraceRow

BLOCK_TOKENS: Final = 16


@dataclass(frozen=True)
class Conversations:
    """What conversations are like; the defaults follow the sessions of BurstGPT file 3.

    Attributes:
        turns: mean number of turns, geometric, at least 1.
        think: median seconds from the start of a turn to that of the next, lognormal with `think_sigma`.
        first, message, output: tokens of the first prompt, of what each further turn adds, of each answer.
        max_context: a conversation ends before the turn that would exceed it.
    """

    turns: float = 3.13
    think: float = 144.0
    think_sigma: float = 1.6
    first: LengthModel = field(default_factory=lambda: LogNormal(49, 1.2, 8_192))
    message: LengthModel = field(default_factory=lambda: LogNormal(49, 1.2, 8_192))
    output: LengthModel = field(default_factory=lambda: LogNormal(114, 1.1, 4_096))
    max_context: int = 32_768

    def __post_init__(self) -> None:
        if not 1 <= self.turns <= 1_000:
            raise InputError(f"--turns: {self.turns:g} is not between 1 and 1,000")
        if not 0 < self.think <= 1e7 or not 0 <= self.think_sigma <= 10:
            raise InputError(f"--think: {self.think:g} is not seconds above 0, at most 1e7")
        if self.max_context < 2:
            raise InputError(f"--max-context: {self.max_context} has no room for a prompt and a token")


def generate_conversations(
    shape: Conversations | None = None,
    *,
    requests: int,
    seed: int,
    rate: float = 0.1,
    arrivals: ArrivalModel | None = None,
) -> Trace:
    """A trace of `requests` turns, the first at 0; equal arguments give equal rows.

    A turn's prompt is the one before it, its answer, and a new message. Ids of 16-token blocks say so: block i
    of a conversation has one id in all turns. The last conversations may be cut short at `requests`.

    Args:
        rate: conversations that begin a second, by the process `arrivals` (Poisson).

    Raises:
        InputError: a number out of range.
    """
    shape, arrivals = shape or Conversations(), arrivals or Poisson()
    check_numbers(requests, seed, rate)
    rngs = [np.random.Generator(np.random.PCG64(child)) for child in np.random.SeedSequence(seed).spawn(3)]
    starts = arrivals.sample(rngs[0], requests, rate).tolist()
    turns = rngs[1].geometric(1 / shape.turns, requests).tolist()
    rows: list[TraceRow] = []
    next_id = 0
    for session, (start_ns, count) in enumerate(zip(starts, turns, strict=True)):
        made = list(_turns(shape, session, start_ns, min(count, requests - len(rows)), next_id, rngs[2]))
        rows += made
        next_id += max((len(row.prefix_ids or ()) for row in made), default=0)
        if len(rows) == requests:
            break
    rows.sort(key=lambda row: row.arrival_ns)
    entry = {"name": "generate", "requests": requests, "seed": seed, "rate": rate}
    entry |= {"arrivals": repr(arrivals), "conversations": repr(shape)}
    provenance = Provenance(
        "generated:conversations", "generated", None, [entry], rows_in=len(rows), rows_out=len(rows)
    )
    numbered = (row._replace(source_row=index) for index, row in enumerate(rows))
    return Trace(numbered, provenance, BLOCK_TOKENS)


def _turns(
    shape: Conversations, session: int, start_ns: int, count: int, first_id: int, rng: np.random.Generator
) -> Iterator[TraceRow]:
    firsts = shape.first.sample(rng, 1).tolist()
    messages = firsts + shape.message.sample(rng, count - 1).tolist()
    outputs = shape.output.sample(rng, count).tolist()
    gaps = np.rint(rng.lognormal(np.log(shape.think), shape.think_sigma, count) * 1e9).tolist()
    arrival_ns, history = start_ns, 0
    for turn, (message, output, gap) in enumerate(zip(messages, outputs, gaps, strict=True)):
        prompt = history + message
        if turn == 0:
            prompt = min(prompt, shape.max_context - 1)
            output = min(output, shape.max_context - prompt)
        elif prompt + output > shape.max_context:
            return
        ids = tuple(range(first_id, first_id - (-prompt // BLOCK_TOKENS)))
        yield TraceRow(turn, arrival_ns, prompt, output, session=str(session), prefix_ids=ids)
        arrival_ns, history = arrival_ns + int(gap), prompt + output
        if arrival_ns > INT64_MAX:
            raise InputError(
                f"--think: conversation {session} takes more than 292 years; give a smaller number"
            )
