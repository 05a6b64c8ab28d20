"""Conversations in a workload: which turn follows which, and what of the one before its prompt begins with.

Pure book-keeping, the same for simulated block hashes and for real token ids; it reads no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tinyllm.engine.record.workload import ArrivalRecord

T = TypeVar("T")

ThinkTime = Callable[[ArrivalRecord, ArrivalRecord], int]
"""From the end of a request to the next turn, in ns, given the two."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A request that follows another one of its session.

    Attributes:
        after: the request whose answer the client waits for before this turn, if it waits.
        history: the request whose prompt and output this prompt begins with; None where it contains none.
        think_ns: from the end of `after` to this turn.
    """

    after: str
    history: str | None
    think_ns: int


def plan_turns(
    records: Iterable[ArrivalRecord], prefix_block_size: int | None, think_time: ThinkTime
) -> dict[str, Turn]:
    """The later turns of all sessions, by request id.

    A turn follows the row before it in its session; where rows have prefix ids, the latest one whose full
    prompt blocks its own ids begin with, since chats fork. It contains the history of the latest such row
    whose prompt and output (true lengths) are no longer than its own prompt.

    Args:
        records: in order of arrival.
        prefix_block_size: tokens that one prefix id stands for.
    """
    sessions: dict[str, _EarlierRows] = {}
    turns: dict[str, Turn] = {}
    for record in records:
        if record.session is None:
            continue
        earlier = sessions.setdefault(record.session, _EarlierRows(prefix_block_size))
        candidates = earlier.candidates(record)
        if candidates:
            after = candidates[-1]
            history = next((c.request_id for c in reversed(candidates) if _contains(record, c)), None)
            turns[record.request_id] = Turn(after.request_id, history, think_time(after, record))
        earlier.add(record)
    return turns


def _contains(record: ArrivalRecord, before: ArrivalRecord) -> bool:
    return record.prompt_tokens >= before.prompt_tokens + before.target_output_tokens


class _EarlierRows:
    """The rows of one session so far, findable by the prefix ids of their full prompt blocks."""

    def __init__(self, prefix_block_size: int | None) -> None:
        self._block_size = prefix_block_size
        self._last: ArrivalRecord | None = None
        self._num_rows = 0
        # An equal id means an equal prefix, so the last full block stands for all of them.
        self._by_last_block: dict[tuple[int, int], tuple[int, ArrivalRecord]] = {}

    def add(self, record: ArrivalRecord) -> None:
        self._last = record
        self._num_rows += 1
        if record.prefix_ids is not None and self._block_size is not None:
            full_blocks = record.prompt_tokens // self._block_size
            if full_blocks:
                key = (full_blocks, record.prefix_ids[full_blocks - 1])
                self._by_last_block[key] = (self._num_rows, record)

    def candidates(self, record: ArrivalRecord) -> list[ArrivalRecord]:
        """The rows that this one may follow, the latest last; the row before it where the ids name none."""
        found = [
            self._by_last_block[key]
            for key in enumerate(record.prefix_ids or (), start=1)
            if key in self._by_last_block
        ]
        if found:
            return [row for _, row in sorted(found, key=lambda entry: entry[0])]
        return [] if self._last is None else [self._last]


@dataclass(frozen=True, slots=True)
class Inherited(Generic[T]):
    """What a turn's prompt begins with.

    Attributes:
        request_id: whose content it is.
        ended: whether the output is in it: the request had ended when the turn was submitted.
        content: its prompt, or its prompt and output; may be longer than the turn's prompt.
    """

    request_id: str
    ended: bool
    content: Sequence[T]


@dataclass(slots=True)
class _Content(Generic[T]):
    prompt: Sequence[T]
    whole: Sequence[T] = ()
    end_ns: int | None = None


class Histories(Generic[T]):
    """The content of requests that later turns contain: kept until the last of them was submitted.

    Content is any sequence in token order: token ids, or the hashes of full blocks.
    """

    def __init__(self, turns: Mapping[str, Turn]) -> None:
        self._history = {name: turn.history for name, turn in turns.items() if turn.history is not None}
        self._num_readers = Counter(self._history.values())
        self._kept: dict[str, _Content[T]] = {}

    def inherit(self, request_id: str, submitted_ns: int) -> Inherited[T] | None:
        """What the prompt of a request, submitted then, begins with; told once.

        A client knows an answer that had ended by then; of one that goes on it can send the prompt only.
        """
        history = self._history.pop(request_id, None)
        kept = None if history is None else self._read(history)
        if history is None or kept is None:
            return None
        ended = kept.end_ns is not None and kept.end_ns <= submitted_ns
        return Inherited(history, ended, kept.whole if ended else kept.prompt)

    def start(self, request_id: str, prompt: Sequence[T]) -> None:
        """A request with this prompt was accepted."""
        if self._num_readers[request_id] > 0:
            self._kept[request_id] = _Content(prompt)

    def end(self, request_id: str, output: Sequence[T], end_ns: int) -> None:
        """A request ended, for whatever reason, with this after its prompt."""
        # One that was refused has not asked for its history, and never will.
        history = self._history.pop(request_id, None)
        if history is not None:
            self._read(history)
        kept = self._kept.get(request_id)
        if kept is not None:
            kept.whole, kept.end_ns = [*kept.prompt, *output], end_ns

    def _read(self, history: str) -> _Content[T] | None:
        """Count a reader off; the last one takes the content with it."""
        self._num_readers[history] -= 1
        return self._kept.get(history) if self._num_readers[history] else self._kept.pop(history, None)
