"""Tables in Markdown, with three digits that count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from analysis.table import format_number


class Column(NamedTuple):
    """One column: a key of the rows, its heading, and how many of the shown unit are in one."""

    key: str
    heading: str
    scale: float = 1.0


def table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a table; texts stand left, numbers right."""
    texts = [any(isinstance(row.get(column.key), str) for row in rows) for column in columns]
    lines = [
        _line([column.heading for column in columns]),
        _line(["---" if text else "---:" for text in texts]),
    ]
    return lines + [_line([cell(row, column) for column in columns]) for row in rows]


def cell(row: Mapping[str, Any], column: Column) -> str:
    """A value, with its smallest and largest over the repeats where these differ from it."""
    value = row.get(column.key)
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, str):
        return value
    text = _number(value, column.scale)
    low, high = (row.get(f"{column.key}_{end}") for end in ("min", "max"))
    if value is None or low is None or high is None or low == high:
        return text
    return f"{text} ({_number(low, column.scale)}–{_number(high, column.scale)})"


def _number(value: float | None, scale: float) -> str:
    # `format_number` takes whole numbers for counts, which have no unit.
    return format_number(value if value is None or scale == 1 else float(value), scale)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
