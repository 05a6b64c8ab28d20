"""Rows of a table between two parts, kept so that adding one is cheap."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

Row = Sequence[Any]
"""The values of a row, in the order of the schema's columns."""


class RowBuffer(Protocol):
    """Collects rows of one schema."""

    def append(self, row: Row) -> None:
        """Add a row."""

    def __len__(self) -> int: ...

    def take(self) -> pa.Table:
        """All rows, which the buffer then forgets."""


class ObjectRows:
    """Rows of any types, nulls included."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows: list[Row] = []
        self.append = self._rows.append

    def __len__(self) -> int:
        return len(self._rows)

    def take(self) -> pa.Table:
        columns = zip(*self._rows, strict=True) if self._rows else ([] for _ in self._schema)
        arrays = [
            pa.array(column, type=field.type) for column, field in zip(columns, self._schema, strict=True)
        ]
        self._rows.clear()
        return pa.Table.from_arrays(arrays, schema=self._schema)


class PackedRows:
    """Rows of numbers without nulls, packed as bytes: a fifth of the memory, and a tenth of the time to a table.

    The table of steps gets a row a step. Kept as Python objects until they make a part, its rows would cost
    more than the scheduling that they describe.
    """

    _CODES: ClassVar = {pa.int64(): ("q", "<i8"), pa.float64(): ("d", "<f8")}

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        codes = [self._CODES[field.type] for field in schema]
        self._struct = struct.Struct("<" + "".join(code for code, _ in codes))
        self._dtype = np.dtype(list(zip(schema.names, (name for _, name in codes), strict=True)))
        self._packed = bytearray()

    def append(self, row: Row) -> None:
        self._packed += self._struct.pack(*row)

    def __len__(self) -> int:
        return len(self._packed) // self._struct.size

    def take(self) -> pa.Table:
        rows = np.frombuffer(self._packed, dtype=self._dtype)
        self._packed = bytearray()
        columns = [pa.array(np.ascontiguousarray(rows[name])) for name in self._schema.names]
        return pa.Table.from_arrays(columns, schema=self._schema)
