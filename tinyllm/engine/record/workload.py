"""`workload.parquet`: the arrival records of a run, after every transform, before the first step."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tinyllm.engine.record.schema import WORKLOAD
from tinyllm.policy.request import BlockHash, Request

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ArrivalRecord:
    """One request of a workload, as a driver hands it in.

    Attributes:
        request_id: unique in the run.
        source_row: row of the trace that it comes from.
        arrival_ns: intended arrival, integer ns since the start of the run.
        prompt_tokens: at least 1.
        max_tokens: output length that the client declares; policies see it.
        target_output_tokens: true output length; policies never see it.
        predicted_output_tokens: a predictor's guess; policies see it.
        priority, tenant, session: as in the trace.
        ttft_deadline_ns, e2e_deadline_ns: absolute due times on the run's clock.
        prefix_ids: ids of the prompt's prefix blocks in the trace's block size, or None.
        warmup: served, but left out of statistics.
    """

    request_id: str
    source_row: int
    arrival_ns: int
    prompt_tokens: int
    max_tokens: int
    target_output_tokens: int
    predicted_output_tokens: int | None = None
    priority: int = 0
    tenant: str | None = None
    session: str | None = None
    ttft_deadline_ns: int | None = None
    e2e_deadline_ns: int | None = None
    prefix_ids: tuple[int, ...] | None = None
    warmup: bool = False


def request_from(record: ArrivalRecord, block_hashes: Sequence[BlockHash] = ()) -> Request:
    """The policy-level request of an arrival record: everything but the true output length."""
    return Request(
        record.request_id,
        record.prompt_tokens,
        record.max_tokens,
        record.arrival_ns,
        priority=record.priority,
        tenant=record.tenant,
        session=record.session,
        predicted_output_tokens=record.predicted_output_tokens,
        ttft_deadline=record.ttft_deadline_ns,
        e2e_deadline=record.e2e_deadline_ns,
        block_hashes=block_hashes,
    )


def seconds(ns: int | None) -> float | None:
    """A log column's value: ns / 1e9, None stays None."""
    return None if ns is None else ns / NS


def write_workload(path: Path, records: Sequence[ArrivalRecord]) -> None:
    """Write all records, atomically."""
    columns = {
        "request_id": [r.request_id for r in records],
        "source_row": [r.source_row for r in records],
        "arrival": [r.arrival_ns / NS for r in records],
        "arrival_ns": [r.arrival_ns for r in records],
        "prompt_tokens": [r.prompt_tokens for r in records],
        "max_tokens": [r.max_tokens for r in records],
        "target_output_tokens": [r.target_output_tokens for r in records],
        "predicted_output_tokens": [r.predicted_output_tokens for r in records],
        "priority": [r.priority for r in records],
        "tenant": [r.tenant for r in records],
        "session": [r.session for r in records],
        "ttft_deadline": [seconds(r.ttft_deadline_ns) for r in records],
        "ttft_deadline_ns": [r.ttft_deadline_ns for r in records],
        "e2e_deadline": [seconds(r.e2e_deadline_ns) for r in records],
        "e2e_deadline_ns": [r.e2e_deadline_ns for r in records],
        "prefix_ids": [r.prefix_ids for r in records],
        "warmup": [r.warmup for r in records],
    }
    write_table(path, pa.table(columns, schema=WORKLOAD))


def write_block_hashes(path: Path, block_hashes: Mapping[str, Sequence[bytes]]) -> None:
    """Write, by request id, what a prefix cache was keyed by, without which a run can't be re-simulated."""
    columns = {"request_id": list(block_hashes), "block_hashes": list(block_hashes.values())}
    schema = pa.schema([("request_id", pa.string()), ("block_hashes", pa.list_(pa.binary()))])
    write_table(path, pa.table(columns, schema=schema))


def write_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file under a temporary name and rename it: a reader sees the whole file or none."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        pq.write_table(table, temporary, compression="zstd")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_workload(path: Path) -> list[ArrivalRecord]:
    """The records of a `workload.parquet`, exactly as they were written."""
    rows = pq.read_table(path, schema=WORKLOAD).to_pylist()
    return [
        ArrivalRecord(
            request_id=row["request_id"],
            source_row=row["source_row"],
            arrival_ns=row["arrival_ns"],
            prompt_tokens=row["prompt_tokens"],
            max_tokens=row["max_tokens"],
            target_output_tokens=row["target_output_tokens"],
            predicted_output_tokens=row["predicted_output_tokens"],
            priority=row["priority"],
            tenant=row["tenant"],
            session=row["session"],
            ttft_deadline_ns=row["ttft_deadline_ns"],
            e2e_deadline_ns=row["e2e_deadline_ns"],
            prefix_ids=None if row["prefix_ids"] is None else tuple(row["prefix_ids"]),
            warmup=row["warmup"],
        )
        for row in rows
    ]
