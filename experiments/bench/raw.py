"""`raw.parquet`: a row a request and run, with the time of every token; a part a run, so that a kill loses one run."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from experiments.bench.jobs import JobResult
from experiments.bench.workloads import Workload

RAW: Final = "raw.parquet"

SCHEMA: Final = pa.schema(
    [
        ("run", pa.int32()),
        ("repeat", pa.int32()),
        ("place", pa.int32()),
        ("engine", pa.string()),
        ("workload", pa.string()),
        ("group", pa.string()),
        ("kind", pa.string()),
        ("shard", pa.int32()),
        ("load", pa.float64()),
        ("request_id", pa.string()),
        ("warmup", pa.bool_()),
        ("prompt_tokens", pa.int32()),
        ("max_tokens", pa.int32()),
        ("arrival_s", pa.float64()),
        ("submitted_s", pa.float64()),
        ("first_scheduled_s", pa.float64()),
        ("token_times_s", pa.list_(pa.float64())),
        ("token_ids", pa.list_(pa.int32())),
        ("finish_reason", pa.string()),
        ("error", pa.string()),
    ]
)


@dataclass(frozen=True)
class RunKey:
    """Which run a row belongs to: the `run`-th of all, in which the engine had the `place`-th turn."""

    run: int
    repeat: int
    place: int
    engine: str


def write_run(directory: Path, key: RunKey, workload: Workload, result: JobResult) -> None:
    """Write one run, complete or not at all. A request without an answer is a row without times."""
    served = {each.request_id: each for each in result.served}
    facts: dict[str, Any] = asdict(key) | {
        name: getattr(workload, name) for name in ("group", "kind", "shard", "load")
    }
    rows = []
    for number, request in enumerate(workload.requests):
        row = facts | {
            "workload": workload.name,
            "request_id": request.request_id,
            "warmup": number < workload.num_warmup,
            "prompt_tokens": len(request.prompt_token_ids),
            "max_tokens": request.max_tokens,
            "arrival_s": request.arrival_s,
            "token_times_s": [],
            "token_ids": [],
            "error": "the engine did not answer",
        }
        if request.request_id in served:
            row |= asdict(served[request.request_id])
        rows.append(row)
    folder = directory / RAW
    folder.mkdir(exist_ok=True)
    temporary = folder / f".part-{key.run:05}.parquet.tmp"
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), temporary)
    os.replace(temporary, folder / f"part-{key.run:05}.parquet")


def read_raw(directory: Path) -> pd.DataFrame:
    """All runs that are complete, in their order."""
    parts = sorted((directory / RAW).glob("part-*.parquet"))
    tables = [pq.read_table(part, schema=SCHEMA) for part in parts]
    frame: pd.DataFrame = pa.concat_tables(tables or [SCHEMA.empty_table()]).to_pandas()
    return frame
