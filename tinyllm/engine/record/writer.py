"""Tables of a run directory, written in parts that appear whole or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tinyllm.engine.record.buffers import ObjectRows, PackedRows, Row, RowBuffer
from tinyllm.engine.record.schema import TABLES
from tinyllm.engine.record.workload import write_table

FLUSH_ROWS = 65_536


class TableWriter:
    """Buffers rows of one table, and writes them as `<table>/part-00000.parquet`, `part-00001` and so on."""

    def __init__(self, directory: Path, table: str) -> None:
        self._directory = directory / table
        self._directory.mkdir(parents=True, exist_ok=True)
        buffer = PackedRows if table == "steps" else ObjectRows
        self._rows: RowBuffer = buffer(TABLES[table])
        self._num_parts = 0
        self.append: Callable[[Row], None] = self._rows.append
        """Add a row: its values in the order of the schema's columns."""

    def __len__(self) -> int:
        return len(self._rows)

    def flush(self) -> None:
        """Write the buffered rows as the next part; nothing if there are none and an earlier part is there, be it
        that of another process."""
        if not len(self._rows) and (self._directory / "part-00000.parquet").exists():
            return
        part = self._directory / f"part-{self._num_parts:05d}.parquet"
        write_table(part, self._rows.take())
        self._num_parts += 1


class LogWriter:
    """The four tables of one run.

    Args:
        directory: of the run.
        flush_rows: rows of a table that make a part.
        flush_seconds: write a part at least so often; None (in simulation, where a wall clock has no place)
            leaves it to the rows.
    """

    def __init__(
        self, directory: Path, flush_rows: int = FLUSH_ROWS, flush_seconds: float | None = None
    ) -> None:
        self._flush_rows = flush_rows
        self._flush_seconds = flush_seconds
        self._last_flush = time.monotonic()
        self.requests = TableWriter(directory, "requests")
        self.steps = TableWriter(directory, "steps")
        self.spans = TableWriter(directory, "spans")
        self.events = TableWriter(directory, "events")
        self._tables = (self.events, self.spans, self.requests, self.steps)

    def flush_if_due(self) -> None:
        """Flush all tables, so that they end at the same step, once a part is due."""
        late = self._flush_seconds is not None and time.monotonic() - self._last_flush >= self._flush_seconds
        if late or any(len(table) >= self._flush_rows for table in self._tables):
            self.flush()

    def flush(self) -> None:
        """Write what is buffered."""
        for table in self._tables:
            table.flush()
        self._last_flush = time.monotonic()
