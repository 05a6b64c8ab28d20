"""The reader of run directories: whole runs, runs after a kill, and damaged ones."""

from __future__ import annotations

import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tinyllm.engine.record.reader import read_run
from tinyllm.engine.record.schema import EVENTS, REQUESTS, SCHEMA_VERSION, STEPS, TABLES, WORKLOAD
from tinyllm.errors import InputError

WORK = [
    {"request_id": f"r{i}", "source_row": 10 + i, "arrival": i / 2, "prompt_tokens": 5, "max_tokens": 7}
    for i in range(3)
]
DONE = [
    {"request_id": "r1", "source_row": 11, "arrival": 0.5, "finished": 2.0, "finish_reason": "stop"},
    {"request_id": "r0", "source_row": 10, "arrival": 0.0, "finished": 3.0, "finish_reason": "length"},
]
QUEUED = [
    {"time": i / 2 + 0.25, "request_id": f"r{i}", "replica": 0, "event": "queued", "step": i}
    for i in range(3)
]


@pytest.fixture
def run_dir(tmp_path):
    """A run that was killed: r0 and r1 are done, r2 is queued."""
    path = tmp_path / "run"
    path.mkdir()
    write_manifest(path, status="running")
    write(path / "workload.parquet", WORK, WORKLOAD)
    rows = {"requests": DONE, "events": QUEUED}
    for name, schema in TABLES.items():
        (path / name).mkdir()
        write(path / name / "part-00000.parquet", rows.get(name, []), schema)
    return path


def write(file, rows, schema):
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)


def write_manifest(path, **changes):
    manifest = {"schema_version": SCHEMA_VERSION, "status": "complete"} | changes
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_after_a_kill_every_workload_row_is_exactly_one_request_row(run_dir):
    requests = read_run(run_dir).requests
    assert requests["request_id"].tolist() == ["r1", "r0", "r2"]
    rebuilt = requests.iloc[2].dropna().to_dict()
    assert rebuilt == {
        "request_id": "r2",
        "source_row": 12,
        "arrival": 1.0,
        "submitted": 1.25,
        "submitted_step": 2,
        "replica": 0,
        "prompt_tokens": 5,
        "max_tokens": 7,
        "finish_reason": "unfinished",
    }


def test_a_request_that_was_running_at_the_kill_keeps_its_first_schedule_and_first_token(run_dir):
    more = [
        {"time": 2.0, "request_id": "r2", "replica": 0, "event": "scheduled", "step": 3},
        {"time": 2.5, "request_id": "r2", "replica": 0, "event": "first_token", "step": 3},
    ]
    write(run_dir / "events" / "part-00001.parquet", more, EVENTS)
    rebuilt = read_run(run_dir).requests.iloc[2]
    assert (rebuilt["first_scheduled"], rebuilt["first_token"]) == (2.0, 2.5)


def test_a_request_that_never_was_submitted_is_rebuilt_from_the_workload_alone(run_dir):
    write(run_dir / "events" / "part-00000.parquet", QUEUED[:2], EVENTS)
    rebuilt = read_run(run_dir).requests.iloc[2]
    assert rebuilt["finish_reason"] == "unfinished"
    assert pd.isna(rebuilt["submitted"])


@pytest.mark.parametrize(("sessions", "arrival"), [("open", 1.0), ("closed", 1.25)])
def test_in_closed_sessions_the_trace_does_not_tell_when_a_lost_request_was_due(run_dir, sessions, arrival):
    write_manifest(run_dir, status="running", sessions=sessions)
    requests = read_run(run_dir).requests
    assert requests["arrival"].tolist() == [0.5, 0.0, arrival]
    assert requests["arrival"].dtype == pd.ArrowDtype(pa.float64())


def test_columns_have_the_schema_s_dtypes_also_when_rows_were_rebuilt_or_a_table_is_empty(run_dir):
    run = read_run(run_dir)
    for name, schema in {**TABLES, "workload": WORKLOAD}.items():
        frame = getattr(run, name)
        assert dict(frame.dtypes) == {column.name: pd.ArrowDtype(column.type) for column in schema}


def test_nulls_stay_null_and_integers_stay_integers(run_dir):
    requests = read_run(run_dir).requests
    column = requests["output_tokens"].array.__arrow_array__()
    assert (column.type, column.null_count) == (pa.int64(), 3)
    assert requests["finished"].array.__arrow_array__().null_count == 1


def test_a_complete_run_is_returned_as_it_is(run_dir):
    write_manifest(run_dir)
    rows = [*DONE, {"request_id": "r2", "arrival": 1.0, "finish_reason": "rejected"}]
    write(run_dir / "requests" / "part-00000.parquet", rows, REQUESTS)
    run = read_run(run_dir)
    assert run.is_complete
    assert run.requests.to_dict("records") == pa.Table.from_pylist(rows, schema=REQUESTS).to_pandas(
        types_mapper=pd.ArrowDtype
    ).to_dict("records")


def test_parts_are_joined_in_order_and_temporary_files_are_ignored(run_dir):
    for part in range(3):
        write(
            run_dir / "steps" / f"part-{part:05d}.parquet",
            [{"step": 2 * part}, {"step": 2 * part + 1}],
            STEPS,
        )
    (run_dir / "steps" / "part-00003.parquet.tmp").write_bytes(b"cut off")
    (run_dir / "steps" / ".part-00003.parquet").write_bytes(b"cut off")
    assert read_run(run_dir).steps["step"].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_killed_run_without_any_flushed_part_is_readable(run_dir):
    for name in TABLES:
        (run_dir / name / "part-00000.parquet").unlink()
        (run_dir / name).rmdir()
    run = read_run(run_dir)
    assert run.requests["finish_reason"].tolist() == ["unfinished"] * 3
    assert run.steps.empty


def test_columns_that_the_schema_does_not_know_come_last(run_dir):
    schema = STEPS.insert(0, pa.field("watts", pa.float64()))
    write(run_dir / "steps" / "part-00000.parquet", [{"step": 0, "watts": 9.5}], schema)
    steps = read_run(run_dir).steps
    assert steps.columns.tolist() == [*STEPS.names, "watts"]


def _truncate(path):
    file = path / "steps" / "part-00000.parquet"
    file.write_bytes(file.read_bytes()[:-20])


def _lose_a_part(path):
    (path / "events" / "part-00000.parquet").rename(path / "events" / "part-00001.parquet")


def _other_type(path):
    schema = pa.schema([("step", pa.string()), *[field for field in STEPS if field.name != "step"]])
    write(path / "steps" / "part-00000.parquet", [], schema)


def _finish_with_a_request_missing(path):
    write_manifest(path)


def _finish_with_a_folder_missing(path):
    write_manifest(path)
    (path / "spans" / "part-00000.parquet").unlink()
    (path / "spans").rmdir()


DAMAGE = {
    "steps/part-00000.parquet is truncated or damaged": _truncate,
    "events/part-00000.parquet is missing": _lose_a_part,
    "column 'step': expected int64, found string": _other_type,
    "requests lacks 1 of 3 requests": _finish_with_a_request_missing,
    "spans is missing": _finish_with_a_folder_missing,
    "column 'end': expected double, found no such column": lambda path: write(
        path / "steps" / "part-00000.parquet", [], pa.schema([f for f in STEPS if f.name != "end"])
    ),
    "workload.parquet is missing": lambda path: (path / "workload.parquet").unlink(),
    "has no manifest.json": lambda path: (path / "manifest.json").unlink(),
    "manifest.json cannot be read": lambda path: (path / "manifest.json").write_text('{"schema_ver'),
    "has schema_version None": lambda path: (path / "manifest.json").write_text("[]"),
    "has schema_version 99": lambda path: write_manifest(path, schema_version=99),
    "has status 'done'": lambda path: write_manifest(path, status="done"),
    "which workload.parquet has not": lambda path: write(
        path / "requests" / "part-00000.parquet", [{"request_id": "other"}], REQUESTS
    ),
    "has a request twice": lambda path: write(
        path / "requests" / "part-00000.parquet", [*DONE, DONE[0]], REQUESTS
    ),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_one_line_that_names_the_file_and_the_mend(run_dir, message):
    DAMAGE[message](run_dir)
    with pytest.raises(InputError) as caught:
        read_run(run_dir)
    text = str(caught.value)
    assert message in text
    assert str(run_dir) in text
    assert "\n" not in text
    assert any(mend in text for mend in ("run the replay again", "restore", "name a directory"))


@pytest.mark.parametrize("name", ["nowhere", "a_file"])
def test_a_path_that_is_no_directory_is_refused(tmp_path, name):
    (tmp_path / "a_file").touch()
    with pytest.raises(InputError, match="name a run directory"):
        read_run(tmp_path / name)
