"""Any CSV, JSON lines or Parquet file whose columns and time unit the user declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tinyllm.errors import InputError
from traces.formats.base import Format, Parse, Source, check_id_count
from traces.formats.cells import UNITS
from traces.formats.containers import Record
from traces.schema import TraceRow

REQUIRED: Final = ("arrival", "prompt_tokens", "output_tokens")
OPTIONAL: Final = ("tenant", "session", "priority", "prefix_ids")
EXAMPLE: Final = "--columns arrival=ts,prompt_tokens=in,output_tokens=out"


def parse_columns(text: str) -> dict[str, str]:
    """`arrival=ts,prompt_tokens=in,...` to field → column.

    Raises:
        InputError: an item without `=`, an unknown or repeated field, a required one left out.
    """
    columns: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, column = item.partition("=")
        if not equals or not column:
            raise InputError(f"--columns: {item!r} is not field=column; write for instance {EXAMPLE}")
        if name in columns:
            raise InputError(f"--columns: {name!r} is given twice; keep one")
        columns[name] = column
    return columns


def check_columns(columns: Mapping[str, str]) -> None:
    """Raise `InputError` unless the fields are known and the required ones are all there."""
    for name in columns:
        if name not in REQUIRED + OPTIONAL:
            known = ", ".join(REQUIRED + OPTIONAL)
            raise InputError(f"--columns: unknown field {name!r}; the fields are {known}")
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise InputError(f"--columns: {', '.join(missing)} not declared; write for instance {EXAMPLE}")


def _check(source: Source) -> None:
    options = source.options
    check_columns(options.columns)
    if options.unit is None:
        raise InputError(f"{source.path}: the time unit is never guessed; add --unit {'|'.join(UNITS)}")
    for name, column in options.columns.items():
        if column not in source.head.columns:
            has = ", ".join(source.head.columns)
            raise InputError(f"{source.path}: has no column {column!r} (--columns {name}=...); it has {has}")
    if "prefix_ids" in options.columns and options.prefix_block_size is None:
        raise InputError(f"{source.path}: prefix ids need --prefix-block-size, the tokens one id stands for")


def _parser(source: Source) -> Parse:
    _check(source)
    columns, unit, block_tokens = (
        source.options.columns,
        source.options.unit,
        source.options.prefix_block_size,
    )
    assert unit is not None
    arrival, prompt, output = (columns[name] for name in REQUIRED)
    tenant, session, priority, prefix_ids = (columns.get(name) for name in OPTIONAL)
    # Epochs of date-times mean nothing in trace time: they count from the first row.
    origin: int | None = None if unit == "iso" else 0

    def parse(record: Record) -> TraceRow:
        nonlocal origin
        stamp = record.time(arrival, unit)
        origin = stamp if origin is None else origin
        prompt_tokens = record.count(prompt)
        ids = record.ids(prefix_ids) if prefix_ids else None
        if ids is not None and block_tokens is not None:
            check_id_count(ids, prompt_tokens, block_tokens)
        return TraceRow(
            source_row=record.source_row,
            arrival_ns=stamp - origin,
            prompt_tokens=prompt_tokens,
            output_tokens=record.count(output),
            tenant=record.text(tenant) if tenant else None,
            session=record.text(session) if session else None,
            priority=record.integer(priority) if priority else 0,
            prefix_ids=ids,
        )

    return parse


TABLE = Format(
    name="table",
    about="any CSV, JSON lines or Parquet with --columns and --unit",
    required=(),
    parser=_parser,
    containers=("csv", "jsonl", "parquet"),
    prefix_block_size=lambda source: source.options.prefix_block_size,
    detectable=False,
)
