"""Writing a trace in our own format, Parquet or CSV: what `open_trace` reads back, row by row the same."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tinyllm.errors import IncompleteRunError, InputError
from traces.formats.exported import METADATA_KEY, prefix_column
from traces.schema import Provenance, Trace, TraceRow

BATCH_ROWS: Final = 16_384


def write_trace(trace: Trace, out: str | Path, *, force: bool = False) -> Path:
    """Consume a trace into `out` (`.parquet` or `.csv`); the file appears whole or not at all.

    Parquet carries the provenance in its metadata; CSV holds the rows only.

    Raises:
        InputError: another suffix, no such directory, the file exists and not `force`; what the rows raise.
        IncompleteRunError: the file system refuses (a full disk).
    """
    out = Path(out)
    write = _WRITERS.get(out.suffix.lower())
    if write is None:
        raise InputError(
            f"{out}: a trace is written as {' or '.join(_WRITERS)}; end the name with one of them"
        )
    if not out.parent.is_dir():
        raise InputError(f"{out}: the directory {out.parent} does not exist; make it first")
    if out.is_dir() or (out.exists() and not force):
        raise InputError(f"{out}: exists already; choose another name or add --force")
    partial = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        write(trace, partial)
        partial.replace(out)
    except OSError as error:
        raise IncompleteRunError(f"{out}: could not be written ({error.strerror or error})") from None
    finally:
        partial.unlink(missing_ok=True)
    return out


def provenance_dict(provenance: Provenance) -> dict[str, Any]:
    """The provenance in types of JSON, for the metadata of an export and the manifest of a run."""
    return {**vars(provenance), "dropped": dict(provenance.dropped)}


def _write_csv(trace: Trace, path: Path) -> None:
    names = [_column(name, trace.prefix_block_size) for name in TraceRow._fields]
    with path.open("w", encoding="utf-8", newline="") as file:
        # With this line end (the default) a CR and a LF inside a name are both quoted.
        writer = csv.writer(file, lineterminator="\r\n")
        writer.writerow(names)
        for row in trace.rows:
            ids = None if row.prefix_ids is None else json.dumps(row.prefix_ids)
            writer.writerow(row._replace(prefix_ids=ids))  # type: ignore[arg-type]  # as text


def _write_parquet(trace: Trace, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _parquet_schema(trace.prefix_block_size)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in _batches(trace.rows):
            columns = zip(*batch, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
        # At the end: only now the counters of the provenance are full.
        text = json.dumps(provenance_dict(trace.provenance), sort_keys=True)
        writer.add_key_value_metadata({METADATA_KEY: text.encode()})


def _parquet_schema(prefix_block_size: int | None) -> Any:
    import pyarrow as pa

    types = {"tenant": pa.string(), "session": pa.string(), "prefix_ids": pa.list_(pa.int64())}
    return pa.schema(
        [(_column(name, prefix_block_size), types.get(name, pa.int64())) for name in TraceRow._fields]
    )


def _column(name: str, prefix_block_size: int | None) -> str:
    """The column of a row's field; that of prefix ids also says how many tokens an id stands for."""
    return prefix_column(prefix_block_size) if name == "prefix_ids" else name


def _batches(rows: Iterator[TraceRow]) -> Iterator[list[TraceRow]]:
    while batch := list(islice(rows, BATCH_ROWS)):
        yield batch


_WRITERS: Final[dict[str, Callable[[Trace, Path], None]]] = {".parquet": _write_parquet, ".csv": _write_csv}
