"""Read a run directory back: the one place that knows how the log lies on disk.

Every column is backed by Arrow (`pandas.ArrowDtype`) with exactly the dtype of the schema, so an integer
column may hold nulls and stays an integer column; a value that is not known is null, never NaN.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tinyllm.engine.record.schema import SCHEMA_VERSION, TABLES, WORKLOAD
from tinyllm.errors import InputError

STATUSES: Final = ("running", "complete", "interrupted", "stalled")

_FROM_WORKLOAD: Final = (
    "request_id",
    "source_row",
    "tenant",
    "session",
    "priority",
    "arrival",
    "prompt_tokens",
    "max_tokens",
    "target_output_tokens",
)


@dataclass(frozen=True)
class Run:
    """A run in memory. Times are seconds since the start of the run.

    Attributes:
        path: the run directory.
        manifest: `manifest.json` as it is.
        requests, steps, spans, events, workload: the tables, with the columns and dtypes of
            `tinyllm.engine.record.schema`, then whatever further columns the writer added. `requests` has
            exactly one row for each row of `workload`.
    """

    path: Path
    manifest: dict[str, Any]
    requests: pd.DataFrame
    steps: pd.DataFrame
    spans: pd.DataFrame
    events: pd.DataFrame
    workload: pd.DataFrame

    @property
    def status(self) -> str:
        """`running` (or killed), `complete`, `interrupted` or `stalled`."""
        return str(self.manifest["status"])

    @property
    def is_complete(self) -> bool:
        return self.status == "complete"


def read_run(path: Path | str) -> Run:
    """Read the run directory `path`.

    A run that is not complete (killed, interrupted, still going) is read as far as it was flushed; each
    request whose row is not there yet is rebuilt from `workload.parquet` and the event log with finish
    reason `unfinished`. Counters that the lost row would have held are null.

    Raises:
        InputError: `path` is no run directory, its schema version is foreign, or a file of it is damaged.
    """
    directory = Path(path)
    manifest = read_manifest(directory)
    complete = manifest["status"] == "complete"
    tables = {name: _read_table(directory / name, schema, complete) for name, schema in TABLES.items()}
    workload_file = directory / "workload.parquet"
    if not workload_file.is_file():
        raise InputError(f"{workload_file} is missing: restore it, or run the replay again")
    workload = _to_pandas(_read_file(workload_file, WORKLOAD))
    frames = {name: _to_pandas(table) for name, table in tables.items()}
    frames["requests"] = _account_for_all(directory, frames["requests"], frames["events"], workload, manifest)
    return Run(path=directory, manifest=manifest, workload=workload, **frames)


def read_manifest(directory: Path | str) -> dict[str, Any]:
    """`manifest.json` of a run directory, checked to be one that this version can read.

    Raises:
        InputError: there is none, it is not JSON, or its schema version or status is unknown.
    """
    directory = Path(directory)
    if not directory.is_dir():
        kind = "is a file" if directory.exists() else "does not exist"
        raise InputError(f"{directory} {kind}: name a run directory, as `tinyllm replay --out DIR` writes it")
    file = directory / "manifest.json"
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{directory} has no manifest.json, so it is no run: name a directory that `tinyllm replay` wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read ({_one_line(error)}): run the replay again") from None
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{file} has schema_version {version!r}, this tinyllm reads {SCHEMA_VERSION}: "
            "use the version that wrote it, or run the replay again"
        )
    if manifest.get("status") not in STATUSES:
        raise InputError(
            f"{file} has status {manifest.get('status')!r}, not one of {', '.join(STATUSES)}: "
            "run the replay again"
        )
    return dict(manifest)


def _read_table(folder: Path, schema: pa.Schema, complete: bool) -> pa.Table:
    """All flushed parts of one table. A temporary file of a write that was cut off has another name."""
    if not folder.is_dir():
        if complete:
            raise InputError(f"{folder} is missing, though the run is complete: restore it, or run it again")
        return schema.empty_table()
    parts = sorted(folder.glob("part-*.parquet"))
    for number, part in enumerate(parts):
        if part.name != f"part-{number:05d}.parquet":
            raise InputError(
                f"{folder}/part-{number:05d}.parquet is missing, though {part.name} is there: "
                "restore it, or run the replay again"
            )
    if not parts:
        return schema.empty_table()
    return pa.concat_tables([_read_file(part, schema) for part in parts])


def _read_file(file: Path, schema: pa.Schema) -> pa.Table:
    try:
        table = pq.ParquetFile(file).read()
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"{file} is truncated or damaged ({_one_line(error)}): restore it, or run the replay again"
        ) from None
    for column in schema:
        found = (
            table.schema.field(column.name).type if column.name in table.column_names else "no such column"
        )
        if found != column.type:
            raise InputError(
                f"{file} column {column.name!r}: expected {column.type}, found {found}: "
                f"it is no log of schema version {SCHEMA_VERSION}, run the replay again"
            )
    extra = [name for name in table.column_names if name not in schema.names]
    return table.select([*schema.names, *extra])


def _to_pandas(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype)
    return frame


def _account_for_all(
    directory: Path,
    requests: pd.DataFrame,
    events: pd.DataFrame,
    workload: pd.DataFrame,
    manifest: dict[str, Any],
) -> pd.DataFrame:
    """`requests` with one row for each row of `workload`."""
    strangers = requests.loc[~requests["request_id"].isin(workload["request_id"]), "request_id"]
    if len(strangers):
        raise InputError(
            f"{directory}/requests has request {strangers.iloc[0]!r}, which workload.parquet has not: "
            "the folder mixes two runs, run the replay again"
        )
    missing = workload.loc[~workload["request_id"].isin(requests["request_id"])]
    if len(requests) + len(missing) != len(workload):
        raise InputError(f"{directory}/requests has a request twice: run the replay again")
    if missing.empty:
        return requests
    if manifest["status"] == "complete":
        raise InputError(
            f"{directory}/requests lacks {len(missing)} of {len(workload)} requests, though the run is "
            "complete: restore the part that was deleted, or run the replay again"
        )
    rebuilt = _rebuild(missing, events)
    if manifest.get("sessions") == "closed":
        # When a turn was due is lost with its row; it was submitted then, or on a late machine just after.
        rebuilt["arrival"] = rebuilt["submitted"].fillna(rebuilt["arrival"])
    return pd.concat([requests, rebuilt], ignore_index=True)


def _rebuild(missing: pd.DataFrame, events: pd.DataFrame) -> pd.DataFrame:
    """Request rows for workload rows that never finished, from what the event log says of them."""
    ids = pd.Index(missing["request_id"])
    queued = _first(events, "queued", ids)
    columns: dict[str, Any] = {name: missing[name].array for name in _FROM_WORKLOAD}
    columns["replica"] = queued["replica"].array
    columns["submitted"] = queued["time"].array
    columns["submitted_step"] = queued["step"].array
    columns["first_scheduled"] = _first(events, "scheduled", ids)["time"].array
    columns["first_token"] = _first(events, "first_token", ids)["time"].array
    columns["finish_reason"] = np.full(len(ids), "unfinished")
    schema = TABLES["requests"]
    return pd.DataFrame(
        {
            field.name: pd.Series(columns.get(field.name, [None] * len(ids)), dtype=pd.ArrowDtype(field.type))
            for field in schema
        }
    )


def _first(events: pd.DataFrame, name: str, request_ids: pd.Index[Any]) -> pd.DataFrame:
    """The first event `name` of each request: a row an id, in the order of `request_ids`, null where none."""
    chosen = events.loc[events["event"] == name].drop_duplicates("request_id")
    return chosen.set_index("request_id").reindex(request_ids)


def _one_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
