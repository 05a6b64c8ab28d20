"""Opening a trace file: detect its format, stream its rows, count them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tinyllm.errors import InputError
from traces.formats import FORMATS
from traces.formats.base import Format, LoadOptions, Parse, Source
from traces.formats.cells import UNITS, CellError
from traces.formats.containers import Head, locate, read_head, read_records
from traces.formats.exported import lineage
from traces.formats.table import parse_columns
from traces.order import ORDERS, Located, Order, in_order
from traces.schema import Provenance, Trace, TraceRow


def open_trace(
    path: str | Path,
    *,
    format: str | None = None,
    columns: Mapping[str, str] | str | None = None,
    unit: str | None = None,
    prefix_block_size: int | None = None,
    order: Order = "error",
) -> Trace:
    """Open a trace file; rows stream in bounded memory (but see `order`), in trace time as the file has it.

    Args:
        path: CSV, JSON lines (both also gzipped) or Parquet.
        format: a name of `FORMATS`; None detects it from the header.
        columns: field → column of a file of no known format, or the text of `--columns`.
        unit: unit of its time column: `s | ms | us | ns | iso`.
        prefix_block_size: tokens that one of its prefix ids stands for.
        order: what to do where the clock steps back, see `traces.order.in_order`.

    Raises:
        InputError: at once for a wrong path, header or option; while rows are consumed for a wrong row,
            naming file, row (as `source_row` counts) and line, and for a file without any row.
    """
    path = Path(path)
    declared = parse_columns(columns) if isinstance(columns, str) else columns or {}
    _check_options(format, unit, prefix_block_size, order)
    source = Source(path, read_head(path), LoadOptions(declared, unit, prefix_block_size))
    chosen = _choose_format(format, source)
    chosen.check(source)
    provenance = Provenance(source=str(path), format=chosen.name, sha256=_sha256(path))
    carried = lineage(source) if chosen is FORMATS["tinyllm"] else None
    if carried is not None:
        provenance.transforms.append({"name": "exported", "from": carried})
    located = _located_rows(source, chosen.parser(source))
    ordered = in_order(located, order, path, provenance)
    return Trace(_counted(ordered, provenance), provenance, chosen.prefix_block_size(source))


def _check_options(format: str | None, unit: str | None, prefix_block_size: int | None, order: str) -> None:
    if format is not None and format not in FORMATS:
        raise InputError(f"--format: unknown format {format!r}; the formats are {', '.join(FORMATS)}")
    if unit is not None and unit not in UNITS:
        raise InputError(f"--unit: unknown unit {unit!r}; the units are {', '.join(UNITS)}")
    if prefix_block_size is not None and prefix_block_size < 1:
        raise InputError(
            f"--prefix-block-size: {prefix_block_size} is not a number of tokens; give 1 or more"
        )
    if order not in ORDERS:
        raise InputError(f"--order: unknown order {order!r}; choose {', '.join(ORDERS)}")


def _choose_format(name: str | None, source: Source) -> Format:
    if name is None and source.options.columns:
        name = "table"
    if name is not None:
        return FORMATS[name]
    for known in FORMATS.values():
        if known.sniff(source.head):
            return known
    raise InputError(
        f"{source.path}: the columns {_shorten(source.head)} are of no known format ({', '.join(FORMATS)}); "
        "declare them with --columns and --unit"
    )


def _shorten(head: Head) -> str:
    text = ", ".join(head.columns)
    return repr(text if len(text) <= 120 else text[:117] + "...")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _located_rows(source: Source, parse: Parse) -> Iterator[Located]:
    for record in read_records(source.path, source.head):
        try:
            yield record.line, record.source_row, parse(record)
        except CellError as error:
            where = locate(source.path, record.source_row, record.line)
            raise InputError(f"{where}: {error}; mend or remove the row") from None


def _counted(rows: Iterator[TraceRow], provenance: Provenance) -> Iterator[TraceRow]:
    for row in rows:
        provenance.rows_in += 1
        provenance.rows_out += 1
        yield row
    if provenance.rows_in == 0:
        raise InputError(f"{provenance.source}: has a header but no data row; give a trace with rows")
