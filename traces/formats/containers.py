"""What a trace file is made of (CSV, JSON lines, Parquet), read record by record in bounded memory."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TextIO, TypeVar, cast

from tinyllm.errors import InputError
from traces.formats.cells import CellError, parse_count, parse_ids, parse_integer, parse_time

BATCH_ROWS: Final = 16_384

T = TypeVar("T")


class Record(NamedTuple):
    """One data row: its number from 0, its line in the file from 1 (Parquet: none), its cells by name.

    The accessors raise `CellError` naming the column.
    """

    source_row: int
    line: int | None
    cells: Mapping[str, object]

    def count(self, column: str) -> int:
        return self._parse(column, parse_count)

    def integer(self, column: str) -> int:
        return self._parse(column, parse_integer)

    def time(self, column: str, unit: str) -> int:
        try:
            return parse_time(self.cells.get(column), unit)
        except CellError as error:
            raise CellError(f"{column} {error}") from None

    def text(self, column: str) -> str | None:
        """The cell as text; None where it is empty."""
        value = self.cells.get(column)
        return None if value is None or value == "" else str(value)

    def ids(self, column: str) -> tuple[int, ...]:
        return self._parse(column, parse_ids)

    def _parse(self, column: str, parse: Callable[[object], T]) -> T:
        try:
            return parse(self.cells.get(column))
        except CellError as error:
            raise CellError(f"{column} {error}") from None


class Head(NamedTuple):
    """What the start of a file says: container, column names, Parquet's key-value metadata, the first JSON line."""

    container: str
    columns: tuple[str, ...]
    metadata: Mapping[bytes, bytes]
    first: Mapping[str, object] = {}


def locate(path: Path, source_row: int, line: int | None) -> str:
    """`file: row 3 (line 5)`, as every message about a row begins."""
    return f"{path}: row {source_row}" + (f" (line {line})" if line is not None else "")


def read_head(path: Path) -> Head:
    """Look at the first bytes: Parquet by its magic, JSON lines by `{`, everything else is CSV.

    Raises:
        InputError: the file is missing, empty, unreadable, or its header repeats a name.
    """
    if _first_bytes(path, 4) == b"PAR1":
        return _parquet_head(path)
    with open_text(path) as file:
        first = next((line for line in file if line.strip()), None)
    if first is None:
        raise InputError(f"{path}: is empty; give a trace with a header and at least one row")
    container = "jsonl" if first.lstrip().startswith("{") else "csv"
    cells: Mapping[str, object] = {}
    if container == "jsonl":
        cells = next(_jsonl_records(path)).cells
        columns = tuple(cells)
    else:
        columns = tuple(name.strip() for name in next(csv.reader([first])))
    repeated = {name for name in columns if columns.count(name) > 1}
    if repeated:
        raise InputError(f"{path}: the header names {sorted(repeated)[0]!r} twice; rename one")
    return Head(container, columns, {}, cells)


def read_records(path: Path, head: Head) -> Iterator[Record]:
    """All data rows in file order; blank lines are skipped and not counted.

    Raises:
        InputError: a row that is not a record, naming file, row and line.
    """
    readers = {"csv": _csv_records, "jsonl": _jsonl_records, "parquet": _parquet_records}
    return readers[head.container](path)


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """The file as UTF-8 text, through gzip where it is gzip, line ends untouched."""
    opener = gzip.open if _first_bytes(path, 2) == b"\x1f\x8b" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield cast(TextIO, file)
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text; convert it first") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise InputError(f"{path}: the gzip stream is broken or cut; fetch the file again") from None


def _first_bytes(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; check the path of the trace") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a readable file") from None


def _csv_records(path: Path) -> Iterator[Record]:
    with open_text(path) as file:
        reader = csv.reader(file)
        try:
            rows = (row for row in reader if len(row) > 1 or "".join(row).strip())
            header = [name.strip() for name in next(rows)]
            for source_row, row in enumerate(rows):
                if len(row) != len(header):
                    where = locate(path, source_row, reader.line_num)
                    raise InputError(f"{where}: has {len(row)} cells, the header {len(header)}; mend the row")
                yield Record(source_row, reader.line_num, dict(zip(header, row, strict=True)))
        except csv.Error as error:
            raise InputError(f"{path}: line {reader.line_num} is not CSV ({error}); mend the line") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _jsonl_records(path: Path) -> Iterator[Record]:
    # Decimal keeps a time such as 0.1 exact; NaN and Infinity are not JSON.
    decoder = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant)
    with open_text(path) as file:
        source_row = 0
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                cells = decoder.decode(text)
            except (ValueError, ArithmeticError, RecursionError) as error:
                where = locate(path, source_row, line)
                raise InputError(f"{where}: is not JSON ({error}); mend the line") from None
            if not isinstance(cells, dict):
                raise InputError(f"{locate(path, source_row, line)}: is not a JSON object; one object a line")
            yield Record(source_row, line, cells)
            source_row += 1


@contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: is not a readable Parquet file ({reason}); write it again") from None


def _parquet_head(path: Path) -> Head:
    with _open_parquet(path) as file:
        return Head("parquet", tuple(file.schema_arrow.names), file.metadata.metadata or {})


def _parquet_records(path: Path) -> Iterator[Record]:
    source_row = 0
    with _open_parquet(path) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            for cells in _timestamps_as_text(batch).to_pylist():
                yield Record(source_row, None, cells)
                source_row += 1


def _timestamps_as_text(batch: Any) -> Any:
    # Python's datetime has no nanoseconds; as ISO text they reach the parser whole.
    import pyarrow as pa

    for index, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type):
            exact = pa.timestamp("ns", tz="UTC" if field.type.tz else None)
            batch = batch.set_column(index, field.name, batch.column(index).cast(exact).cast(pa.string()))
    return batch
