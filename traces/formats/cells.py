"""Cells of a trace file to exact integers: token counts, times in nanoseconds, block ids."""

from __future__ import annotations

import json
import math
import re
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Final

NS_PER_UNIT: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
UNITS: Final = (*NS_PER_UNIT, "iso")
INT64_MAX: Final = 2**63 - 1

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_ISO = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\s?(?:Z|([+-]\d\d:?\d\d))?", re.ASCII)


class CellError(ValueError):
    """A cell that cannot be what its column holds; the reader adds file, row and line."""


def parse_number(value: object) -> int | Decimal:
    """The number as it is written: binary floats count as their shortest decimal.

    Raises:
        CellError: empty, NaN, infinite or no number at all.
    """
    if isinstance(value, str):  # most cells are
        return _parse_text_number(value.strip())
    match value:
        case None:
            raise CellError("is missing or empty")
        case bool():
            raise CellError(f"is {value}, not a number")
        case int():
            return value
        case float() | Decimal():
            if not math.isfinite(value):
                raise CellError(f"is {value}, not a finite number")
            return value if isinstance(value, Decimal) else Decimal(repr(value))
    raise CellError(f"is {value!r}, not a number")


def _parse_text_number(text: str) -> int | Decimal:
    if not text:
        raise CellError("is missing or empty")
    whole = text.removesuffix(".0")  # as pandas writes a column of integers that has a gap
    if whole.isascii() and whole.isdigit() and len(whole) <= 19:
        return int(whole)
    if len(text) > 60 or not _NUMBER.fullmatch(text):
        raise CellError(f"is {text[:60]!r}, not a number")
    return Decimal(text)


def parse_count(value: object) -> int:
    """A number of tokens: whole (`19440110.0` is), not negative, at most 2**63 − 1."""
    if type(value) is str and len(value) <= 18 and value.isascii() and value.isdigit():
        return int(value)  # nearly every cell of a CSV: the general way costs four times as much
    number = parse_number(value)
    if number < 0:
        raise CellError(f"is {number}, which is negative")
    if number > INT64_MAX:
        raise CellError(f"is {number}, which is over 2**63 - 1")
    if number != int(number):
        raise CellError(f"is {number}, not a whole number")
    return int(number)


def parse_integer(value: object) -> int:
    """A whole number that may be negative (a priority)."""
    number = parse_number(value)
    return -parse_count(-number) if number < 0 else parse_count(number)


def parse_time(value: object, unit: str) -> int:
    """A time in nanoseconds, in exact decimal arithmetic; what is finer than 1 ns rounds half to even.

    Args:
        value: a number in `unit`, or with unit `iso` a date-time.
        unit: one of `UNITS`.

    Raises:
        CellError: empty, not a finite number, negative, or past the 292 years that 64 bits hold.
    """
    if unit == "iso":
        return parse_iso(value)
    number = parse_number(value)
    if number < 0:
        raise CellError(f"is {number}, which is negative")
    if number > INT64_MAX // NS_PER_UNIT[unit]:
        raise CellError(f"is {number} {unit}, which 64 bits of nanoseconds cannot hold")
    # round() is half-to-even on a Decimal, and the identity on an int.
    return round(number * NS_PER_UNIT[unit])


def parse_iso(value: object) -> int:
    """ISO 8601 date-time to nanoseconds since 1970 in UTC; 0 to 9 fraction digits; without offset: UTC."""
    match = _ISO.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        if value is None or value == "":
            raise CellError("is missing or empty")
        raise CellError(f"is {value!r}, not a date-time such as 2023-11-16 18:17:03.9799600")
    moment, fraction, offset = match.groups()
    seconds = _whole_seconds(moment) - (_offset_s(offset) if offset else 0)
    return seconds * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


# A busy trace has many rows in a second, and one offset.
@lru_cache(maxsize=64)
def _whole_seconds(moment: str) -> int:
    """`2023-11-16 18:17:03` to seconds since 1970."""
    day, hour, minute, second = moment[:10], int(moment[11:13]), int(moment[14:16]), int(moment[17:])
    if hour > 23 or minute > 59 or second > 60:
        raise CellError(f"is {moment!r}, which is no time of day")
    try:
        days = date.fromisoformat(day).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError:
        raise CellError(f"is dated {day!r}, which is no day") from None
    return days * 86_400 + hour * 3_600 + minute * 60 + second


@lru_cache(maxsize=64)
def _offset_s(offset: str) -> int:
    """`+02:00` or `+0200` to seconds east of UTC."""
    seconds = int(offset[1:3]) * 3_600 + int(offset[-2:]) * 60
    return -seconds if offset[0] == "-" else seconds


def parse_ids(value: object) -> tuple[int, ...]:
    """Block ids: a list of integers, or text such as `[1, 2]` or `1 2`."""
    if isinstance(value, str):
        text = value.strip()
        try:
            value = json.loads(text) if text.startswith("[") else [int(item) for item in text.split()]
        except ValueError:
            raise CellError(f"is {text[:60]!r}, not a list of block ids") from None
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise CellError("is not a list of integer block ids")
    if any(not -INT64_MAX <= item <= INT64_MAX for item in value):
        raise CellError("holds a block id that 64 bits cannot hold")
    return tuple(value)
