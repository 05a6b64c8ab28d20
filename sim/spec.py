"""Turning a parsed JSON object into a frozen dataclass, with errors that name the file and the key."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, Final, TypeVar

from tinyllm.errors import InputError

T = TypeVar("T")

_TYPES: Final[dict[str, type]] = {"int": int, "bool": bool, "str": str}
_EXPECTED: Final = {
    "float": "a finite number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "a text",
}


def build(
    cls: type[T],
    spec: Mapping[str, Any],
    source: str,
    nested: Mapping[str, Callable[[object, str], object]] | None = None,
) -> T:
    """An instance of the dataclass `cls` from the keys of `spec`.

    Fields are annotated float, int, bool or str, written as such; `nested` has, for every other field, a
    reader of (value, where). What `__post_init__` refuses is reported with `source` in front.

    Raises:
        InputError: a key is unknown or missing, or a value has the wrong type, is NaN or infinite.
    """
    known: dict[str, Field[Any]] = {f.name: f for f in fields(cls) if f.init}  # type: ignore[arg-type]
    unknown = [key for key in spec if key not in known]
    if unknown:
        raise InputError(f"{source}: unknown key {unknown[0]!r}; known keys are {', '.join(known)}")
    values: dict[str, Any] = {}
    for name, field in known.items():
        if name in spec and nested and name in nested:
            values[name] = nested[name](spec[name], f"{source}: {name}")
        elif name in spec:
            values[name] = _value(spec[name], str(field.type), f"{source}: {name}")
        elif field.default is MISSING:
            raise InputError(f"{source}: the key {name!r} is missing; add it")
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def require_positive(owner: object, *names: str) -> None:
    """Refuse with InputError unless each named attribute of `owner` is finite and over 0."""
    for name in names:
        value = getattr(owner, name)
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} is {value}; it must be over 0")


def require_non_negative(owner: object, *names: str) -> None:
    """Refuse with InputError unless each named attribute of `owner` is finite and at least 0."""
    for name in names:
        value = getattr(owner, name)
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} is {value}; it must be a finite number of at least 0")


def _value(value: object, kind: str, where: str) -> Any:
    # JSON has one number type, so 1 is as good as 1.0 for a float; a bool is an int to Python only.
    is_bool = isinstance(value, bool)
    if kind == "float" and isinstance(value, int | float) and not is_bool:
        number = _to_float(value)
        if math.isfinite(number):
            return number
    elif kind != "float" and isinstance(value, _TYPES[kind]) and is_bool == (kind == "bool"):
        return value
    raise InputError(f"{where} is {value!r}; it must be {_EXPECTED[kind]}")


def _to_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
