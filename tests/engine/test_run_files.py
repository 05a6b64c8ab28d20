"""What lies on disk: workload, parts, manifest."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyllm.engine.record import manifest, workload
from tinyllm.engine.record.manifest import environment, write_manifest
from tinyllm.engine.record.schema import SCHEMA_VERSION, STEPS, TABLES
from tinyllm.engine.record.workload import ArrivalRecord, read_workload, write_workload
from tinyllm.engine.record.writer import LogWriter, TableWriter

TOKENS = st.integers(1, 2**31)
TIMES = st.integers(0, 2**60)
TEXTS = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
RECORDS = st.builds(
    ArrivalRecord,
    request_id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
    source_row=st.integers(0, 2**40),
    arrival_ns=st.integers(0, 2**60),
    prompt_tokens=TOKENS,
    max_tokens=TOKENS,
    target_output_tokens=TOKENS,
    predicted_output_tokens=st.none() | TOKENS,
    priority=st.integers(-(2**40), 2**40),
    tenant=TEXTS,
    session=TEXTS,
    ttft_deadline_ns=st.none() | TIMES,
    e2e_deadline_ns=st.none() | TIMES,
    prefix_ids=st.none() | st.lists(st.integers(0, 2**62), max_size=4).map(tuple),
    warmup=st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(RECORDS, max_size=5))
def test_a_workload_is_read_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, records: list[ArrivalRecord]
) -> None:
    path = tmp_path_factory.mktemp("workload") / "workload.parquet"
    write_workload(path, records)
    assert read_workload(path) == records


def test_a_write_that_fails_leaves_neither_the_file_nor_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(table: pa.Table, path: Path, **options: Any) -> None:
        Path(path).write_bytes(b"half a fi")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(workload.pq, "write_table", fail)
    with pytest.raises(OSError, match="No space"):
        write_workload(tmp_path / "workload.parquet", [])
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_that_cannot_be_replaced_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_manifest(tmp_path, {"status": "running"})

    def fail(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifest.os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_manifest(tmp_path, {"status": "complete"})
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]
    assert json.loads((tmp_path / "manifest.json").read_text()) == {"status": "running"}


def test_the_environment_names_versions_and_no_place_or_person() -> None:
    facts = environment()
    assert facts["schema_version"] == SCHEMA_VERSION
    assert {"python", "numpy", "pyarrow", "simpy"} <= facts["versions"].keys()
    assert facts["host"].keys() == {"system", "machine", "cpus"}
    assert str(Path.home()) not in json.dumps(facts)


def test_parts_are_numbered_in_order_and_a_table_without_rows_has_one_empty_part(tmp_path: Path) -> None:
    table = TableWriter(tmp_path, "spans")
    for first in (0, 2):
        for step in (first, first + 1):
            table.append((f"r{step}", 0, "prefill", step, step, 1, 1))
        table.flush()
    table.flush()
    parts = sorted((tmp_path / "spans").iterdir())
    assert [part.name for part in parts] == ["part-00000.parquet", "part-00001.parquet"]
    assert [pq.read_table(part)["first_step"].to_pylist() for part in parts] == [[0, 1], [2, 3]]
    LogWriter(tmp_path / "empty").flush()
    for name, schema in TABLES.items():
        assert pq.read_table(tmp_path / "empty" / name / "part-00000.parquet").schema.equals(schema)


def test_all_tables_are_flushed_together_once_one_of_them_is_full(tmp_path: Path) -> None:
    log = LogWriter(tmp_path, flush_rows=3)
    log.steps.append([0] * len(STEPS))
    log.flush_if_due()
    assert not any(tmp_path.glob("*/part-*"))
    for number in range(3):
        log.events.append((0.5, f"r{number}", 0, "queued", 0, None))
    log.flush_if_due()
    assert len(list(tmp_path.glob("*/part-00000.parquet"))) == len(TABLES)


def test_a_log_with_a_clock_is_flushed_by_it(tmp_path: Path) -> None:
    log = LogWriter(tmp_path, flush_seconds=math.inf)
    log.events.append((0.5, "r0", 0, "queued", 0, None))
    log.flush_if_due()
    assert not any(tmp_path.glob("*/part-*"))
    log = LogWriter(tmp_path, flush_seconds=0.0)
    log.events.append((0.5, "r0", 0, "queued", 0, None))
    log.flush_if_due()
    assert len(list(tmp_path.glob("events/part-*"))) == 1
