"""A table of a TOML file whose readers check type and range and, when one is wrong, name file, key and mend."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tinyllm.errors import InputError


class Range(NamedTuple):
    """Whole numbers from `low` to `high`, both included."""

    low: int
    high: int


@dataclass(frozen=True)
class TomlTable:
    """A table and its place in a file; a key that is not among those read is an error of `only`.

    Attributes:
        where: the file, and the table in it, as an error names them.
    """

    where: str
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> TomlTable:
        """Read a file. Raises `InputError` where it is missing or no TOML."""
        try:
            return cls(str(path), tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InputError(f"{path}: cannot be read as TOML ({error}); give another file") from None

    def error(self, key: str, mend: str) -> InputError:
        """What to raise where the value of `key` is wrong."""
        if key not in self.values:
            return InputError(f"{self.where}: {key} is missing; {mend}")
        return InputError(f"{self.where}: {key} is {self.values[key]!r}; {mend}")

    def only(self, *known: str) -> None:
        """Raise `InputError` for a key that nothing reads: most likely one that is spelt wrongly."""
        for key in self.values:
            if key not in known:
                raise InputError(f"{self.where}: {key} is unknown; the keys here are {', '.join(known)}")

    def text(self, key: str) -> str:
        """A text that is not empty."""
        value = self.values.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, "give a text")
        return value

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number; required where there is no default."""
        value = self.values.get(key, default)
        if not _is_whole(value) or value < least:
            raise self.error(key, f"give a whole number, at least {least}")
        return int(value)

    def range(self, key: str) -> Range:
        """A whole number of tokens, or two: the smallest and the largest."""
        value = self.values.get(key)
        ends: list[Any] = value if isinstance(value, list) else [value, value]
        if len(ends) != 2 or not all(_is_whole(end) for end in ends) or not 1 <= ends[0] <= ends[1]:
            raise self.error(key, "give a number of tokens from 1 on, or [smallest, largest]")
        return Range(*ends)

    def number(self, key: str, default: float) -> float:
        """A finite number above 0."""
        value = self.values.get(key, default)
        if not _is_number(value) or not 0 < value < float("inf"):
            raise self.error(key, "give a number above 0")
        return float(value)

    def numbers(self, key: str, *, below: float) -> tuple[float, ...]:
        """A list of numbers, rising, each above 0 and at most `below`."""
        value = self.values.get(key)
        given = value if isinstance(value, list) else []
        if not given or not all(_is_number(each) and 0 < each <= below for each in given):
            raise self.error(key, f"give a list of numbers above 0 and at most {below:g}")
        if sorted(set(given)) != given:
            raise self.error(key, "let the numbers rise, each there once")
        return tuple(float(each) for each in given)

    def table(self, key: str) -> TomlTable | None:
        """The table `[key]`, None where there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"write it as a table, [{key}]")
        return TomlTable(f"{self.where}: [{key}]", value)

    def tables(self, key: str) -> list[TomlTable]:
        """The tables `[[key]]`, none where there is none."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self.error(key, f"write it as tables, [[{key}]]")
        return [TomlTable(f"{self.where}: [[{key}]] {n}", each) for n, each in enumerate(value, start=1)]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
