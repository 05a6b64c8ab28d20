"""`tinyllm resim`: make every scheduling decision of a recorded run again, and compare row by row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow.parquet as pq

from experiments.predictions import refresh_of
from experiments.run_directory import BLOCK_HASHES_FILE, WORKLOAD_FILE, RunDirectory
from sim.driver import OnEnd
from sim.prefix import SessionHasher
from sim.recorded import (
    EmptyStep,
    RecordedOutput,
    RecordedOutputs,
    RecordedSimulation,
    RecordedStep,
    Submission,
    SubmittedHashes,
)
from tinyllm.engine.clients import moved
from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import OutputProcessor
from tinyllm.engine.record.reader import Run, read_run
from tinyllm.engine.record.recorder import LogRecorder
from tinyllm.engine.record.workload import NS, ArrivalRecord, read_workload
from tinyllm.engine.sessions import plan_turns
from tinyllm.errors import InputError
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.registry import make_policy
from tinyllm.policy.request import BlockHash, FinishReason
from tinyllm.policy.scheduler import Scheduler

Hashes = Literal["recorded", "prefix-ids"]

_KEPT = ("seed", "policy", "config", "trace", "sessions", "think_time_s", "client_timeout_s", "turns")
"""What a re-simulation's manifest has from that of the run."""

MEASURED = ("gap_s", "schedule_s", "execute_s")
"""Columns of `steps` that are durations of the real host or device, not decisions."""

_COMPARED = {
    "steps": ["step"],
    "spans": ["request_id", "first_step"],
    "events": ["request_id", "step", "event", "time"],
    "requests": ["request_id", "submitted_step"],
}


@dataclass(frozen=True)
class Difference:
    """The first row of a table in which the two runs differ."""

    table: str
    rows: int
    detail: str


def resimulate(
    run_path: Path, out: Path, *, force: bool = False, hashes: Hashes = "recorded"
) -> list[Difference]:
    """Re-simulate a complete run into `out` and compare the two logs.

    Args:
        hashes: where the prefix cache's block hashes come from: what the run recorded (a simulated run
            records none: they follow from the workload), or the prefix ids of the trace.

    Returns:
        One entry for each table that differs in anything but measured durations; empty if every decision is
        the same.

    Raises:
        InputError: the run can't be read, is not complete, or lacks what is needed.
    """
    run = read_run(run_path)
    if run.manifest["status"] not in ("complete", "interrupted"):
        raise InputError(
            f"{run_path}: its status is {run.manifest['status']}; only a closed log can be re-simulated"
        )
    config = SchedulerConfig(**run.manifest["config"])
    policy = make_policy(run.manifest["policy"]["name"], run.manifest["policy"]["args"])
    workload = read_workload(run_path / WORKLOAD_FILE)
    block_size = config.block_size if config.enable_prefix_caching else None
    recorded_hashes = _recorded_hashes(run, hashes) if block_size is not None else None
    outputs = _outputs(run, recorded_hashes or {})

    manifest = {key: run.manifest[key] for key in _KEPT if key in run.manifest}
    directory = RunDirectory(out, manifest | {"mode": "resim", "source_run": str(run_path)}, force=force)
    directory.write_workload(workload)
    scheduler = Scheduler(config, policy)
    recorder = LogRecorder(directory.open_log(), scheduler)
    core = EngineCore(scheduler, _predicting(run, RecordedOutputs(outputs, block_size), workload), recorder)
    hashing = _hashing(run, workload, block_size, recorded_hashes)
    steps = _steps(run)
    simulation = RecordedSimulation(core, steps, _between_steps(run, workload, steps), *hashing)
    simulation.run()
    recorder.close(simulation.now)
    directory.finish(run.manifest["status"], num_steps=core.num_steps)
    return compare(run, read_run(out))


def _predicting(run: Run, outputs: OutputProcessor, workload: Sequence[ArrivalRecord]) -> OutputProcessor:
    knowledge = run.manifest.get("length_knowledge", {})
    refresh = refresh_of(
        knowledge.get("predictor", "none"), run.manifest["seed"], knowledge.get("refresh_predictions")
    )
    return outputs if refresh is None else refresh.wrap(outputs, workload)


def compare(recorded: Run, again: Run) -> list[Difference]:
    """Each table that differs, ignoring measured durations and the order of rows in a file."""
    differences = []
    for table, order in _COMPARED.items():
        difference = _compare_table(table, order, getattr(recorded, table), getattr(again, table))
        if difference is not None:
            differences.append(difference)
    return differences


def _compare_table(
    table: str, order: list[str], left: pd.DataFrame, right: pd.DataFrame
) -> Difference | None:
    columns = [column for column in left.columns if column not in MEASURED]
    frames = [
        frame[columns].sort_values(order, kind="stable").reset_index(drop=True) for frame in (left, right)
    ]
    if len(left) != len(right):
        return Difference(
            table, abs(len(left) - len(right)), f"{len(left)} rows recorded, {len(right)} simulated"
        )
    equal = (frames[0] == frames[1]).fillna(False) | (frames[0].isna() & frames[1].isna())
    wrong = ~equal.all(axis=1)
    if not wrong.any():
        return None
    row = int(wrong.to_numpy().argmax())
    column = columns[int((~equal.iloc[row].to_numpy(dtype=bool)).argmax())]
    where = ", ".join(f"{name} {frames[0].loc[row, name]!r}" for name in order)
    values = [repr(frame.loc[row, column]) for frame in frames]
    return Difference(
        table, int(wrong.sum()), f"{where}: {column} is {values[0]} recorded, {values[1]} simulated"
    )


def _steps(run: Run) -> list[RecordedStep]:
    columns = (run.steps[name].to_numpy(dtype=float) for name in ("start", "end", "gap_s"))
    return [
        RecordedStep(_ns(start), _ns(end), _ns(end) + _ns(gap))
        for start, end, gap in zip(*columns, strict=True)
    ]


def _between_steps(
    run: Run, workload: Sequence[ArrivalRecord], steps: Sequence[RecordedStep]
) -> dict[int, list[Submission | EmptyStep]]:
    """What happened between steps, in the log's own order of rows."""
    # Turns of closed sessions did not come when the trace says.
    arrivals = dict(zip(run.requests["request_id"], run.requests["arrival"], strict=True))
    records = {r.request_id: moved(r, _ns(arrivals[r.request_id])) for r in workload}
    submitted = dict(zip(run.requests["request_id"], run.requests["submitted"], strict=True))
    events = run.events[run.events["event"].isin(["queued", "rejected", "aborted"])]
    # A request that was queued and then rejected is dropped by the scheduler itself.
    dropped = events["request_id"].duplicated() & (events["event"] == "rejected")
    begins = dict(enumerate(step.start_ns for step in steps))
    attempts = begins.copy()
    between: dict[int, list[Submission | EmptyStep]] = defaultdict(list)
    # Backwards: what is queued is taken up by the time of what comes next, the beginning of a step if nothing else.
    for is_dropped, row in zip(reversed(dropped.tolist()), reversed(events.to_dict("records")), strict=True):
        number, time_ns = int(row["step"]), _ns(row["time"])
        if is_dropped:
            if time_ns != attempts.get(number):
                between[number].append(EmptyStep(time_ns))
            attempts[number] = begins[number] = time_ns
            continue
        attempts.pop(number, None)  # a drop before this was no part of that attempt
        if row["event"] != "queued":
            begins[number] = time_ns
        record, aborted = records[row["request_id"]], row["event"] == "aborted"
        submitted_ns = _ns(submitted[record.request_id])
        between[number].append(Submission(record, submitted_ns, aborted, begins.get(number, 0)))
    return {number: happened[::-1] for number, happened in between.items()}


def _outputs(run: Run, block_hashes: Mapping[str, Sequence[BlockHash]]) -> dict[str, RecordedOutput]:
    finished = run.events[run.events["event"] == "finished"]
    last_steps = dict(zip(finished["request_id"], finished["step"], strict=True))
    return {
        row["request_id"]: RecordedOutput(
            last_steps.get(row["request_id"]),
            FinishReason(row["finish_reason"]),
            block_hashes.get(row["request_id"]),
        )
        for row in run.requests[["request_id", "finish_reason"]].to_dict("records")
    }


def _recorded_hashes(run: Run, hashes: Hashes) -> dict[str, Sequence[BlockHash]] | None:
    """The block hashes that a real run kept; None where they are to be made anew."""
    recorded = run.path / BLOCK_HASHES_FILE
    if hashes == "recorded" and recorded.exists():
        table = pq.read_table(recorded).to_pydict()
        return dict(zip(table["request_id"], table["block_hashes"], strict=True))
    if hashes == "recorded" and run.manifest["mode"] != "sim":
        raise InputError(
            f"{recorded}: missing, and the run used a prefix cache; --hashes prefix-ids makes them anew"
        )
    return None


def _hashing(
    run: Run,
    workload: Sequence[ArrivalRecord],
    block_size: int | None,
    recorded: Mapping[str, Sequence[BlockHash]] | None,
) -> tuple[SubmittedHashes | None, OnEnd | None]:
    """What gives prompts their hashes, and what it has to be told of ends."""
    if block_size is None:
        return None, None
    if recorded is not None:
        return lambda record, _: recorded[record.request_id][: record.prompt_tokens // block_size], None
    prefix_block_size = run.manifest["trace"].get("prefix_block_size")
    # Runs of older versions do not say how their sessions went: their turns inherited nothing.
    turns = plan_turns(workload, prefix_block_size, lambda *_: 0) if "sessions" in run.manifest else {}
    hasher = SessionHasher(workload, turns, block_size, prefix_block_size)
    return hasher.start, hasher.end


def _ns(value: Any) -> int:
    return round(float(value) * NS)
