"""What a trace format is: a name, the columns that give it away, and how a record becomes a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tinyllm.errors import InputError
from traces.formats.cells import CellError
from traces.formats.containers import Head, Record
from traces.schema import TraceRow


@dataclass(frozen=True)
class LoadOptions:
    """What the user declared about a file of no known format.

    Attributes:
        columns: field of `TraceRow` (`arrival` for the time) → name of the column.
        unit: unit of the time column, `s | ms | us | ns | iso`; never guessed.
        prefix_block_size: tokens that one prefix id stands for.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    unit: str | None = None
    prefix_block_size: int | None = None


@dataclass(frozen=True)
class Source:
    """A file whose head has been read, and the options it is read with."""

    path: Path
    head: Head
    options: LoadOptions


Parse = Callable[[Record], TraceRow]
"""Turns one record into a row; raises `CellError` on a wrong cell."""


def stateless(parse: Parse) -> Callable[[Source], Parse]:
    """The `parser` of a format whose records say nothing about each other."""
    return lambda source: parse


def _no_prefix_ids(source: Source) -> int | None:
    return None


def _any_head(head: Head) -> bool:
    return True


@dataclass(frozen=True)
class Format:
    """A trace format. To add one: a file with a `Format` and a line in `traces/formats/__init__.py`.

    Attributes:
        name: what `--format` takes.
        about: one line for lists of formats.
        required: columns without which a file is not of this format.
        parser: makes the parser of one file; it may keep state (the first time stamp) and checks options.
        containers: `csv`, `jsonl`, `parquet`: those in which the format comes.
        prefix_block_size: tokens that one prefix id of the file stands for.
        detectable: whether the header alone says that a file is of this format.
        telltale: what detection asks besides the columns, where another format has the same.
    """

    name: str
    about: str
    required: tuple[str, ...]
    parser: Callable[[Source], Parse]
    containers: tuple[str, ...] = ("csv",)
    prefix_block_size: Callable[[Source], int | None] = _no_prefix_ids
    detectable: bool = True
    telltale: Callable[[Head], bool] = _any_head

    def sniff(self, head: Head) -> bool:
        """Whether a file that begins so is of this format."""
        named = set(self.required) <= set(head.columns)
        return self.detectable and head.container in self.containers and named and self.telltale(head)

    def check(self, source: Source) -> None:
        """Raise `InputError` when a file that is said to be of this format cannot be."""
        if source.head.container not in self.containers:
            expected = " or ".join(self.containers)
            raise InputError(
                f"{source.path}: is {source.head.container}, but format {self.name} is {expected}; "
                "leave --format out to have it detected"
            )
        missing = [name for name in self.required if name not in source.head.columns]
        if missing:
            raise InputError(
                f"{source.path}: the header lacks {', '.join(map(repr, missing))} of format {self.name}; "
                f"it has {', '.join(source.head.columns)}"
            )


def check_id_count(ids: tuple[int, ...], prompt_tokens: int, block_tokens: int) -> None:
    """Raise `CellError` unless there is one id for each full or partial block of the prompt."""
    expected = -(-prompt_tokens // block_tokens)
    if len(ids) != expected:
        raise CellError(
            f"has {len(ids)} prefix ids for {prompt_tokens} prompt tokens, "
            f"but blocks of {block_tokens} tokens need {expected}"
        )
