"""Run directories for the tests: written row by row, or by a naive engine that remembers every token's time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tinyllm.engine.record.schema import SCHEMA_VERSION, TABLES, WORKLOAD

Rows = list[dict[str, Any]]

MANIFEST = {
    "schema_version": SCHEMA_VERSION,
    "status": "complete",
    "mode": "sim",
    "policy": {"name": "fcfs", "args": {}},
    "config": {"block_size": 16},
    "seed": 0,
    "trace": {"path": "trace.csv", "format": "azure", "sha256": "ab" * 32, "rows_in": 3, "rows_out": 3},
    "versions": {"tinyllm": "0.1.0"},
}


@dataclass
class Job:
    """A request for the naive engine, and what became of it (`tokens`: the time of each output token)."""

    arrival: float
    prompt: int
    output: int
    refused: bool = False
    warmup: bool = False
    tenant: str | None = None
    tokens: list[float] = field(default_factory=list)
    scheduled: float | None = None
    preemptions: int = 0


def write_run(
    path: Path,
    *,
    requests: Rows,
    workload: Rows | None = None,
    steps: Rows = (),
    spans: Rows = (),
    events: Rows = (),
    **manifest: Any,
) -> Path:
    """A run directory of these rows; columns that a row does not name are null. Returns `path`."""
    if workload is None:
        workload = [{name: row.get(name) for name in WORKLOAD.names} | {"warmup": False} for row in requests]
    path.mkdir(parents=True)
    (path / "manifest.json").write_text(json.dumps(MANIFEST | manifest))
    pq.write_table(pa.Table.from_pylist(list(workload), schema=WORKLOAD), path / "workload.parquet")
    rows = {"requests": requests, "steps": steps, "spans": spans, "events": events}
    for name, schema in TABLES.items():
        (path / name).mkdir()
        table = pa.Table.from_pylist(list(rows[name]), schema=schema)
        pq.write_table(table, path / name / "part-00000.parquet")
    return path


def run_naively(
    path: Path, jobs: list[Job], seats: int = 2, preempt_at: frozenset[int] = frozenset()
) -> Path:
    """Serve `jobs` first come first served, a prompt in one step, a step a second; write the log.

    In the steps of `preempt_at` the last of the running is thrown out and later computed again.
    """
    log = _Log()
    waiting: list[int] = []
    running: list[int] = []
    to_come = sorted((i for i, job in enumerate(jobs) if not job.refused), key=lambda i: jobs[i].arrival)
    now = 0.0
    while to_come or waiting or running:
        if not waiting and not running:
            now = max(now, jobs[to_come[0]].arrival)
        while to_come and jobs[to_come[0]].arrival <= now:
            waiting.append(to_come.pop(0))
            log.event(now, waiting[-1], "queued")
        if log.step in preempt_at and len(running) > 1:
            victim = running.pop()
            waiting.insert(0, victim)
            jobs[victim].preemptions += 1
            log.event(now, victim, "preempted")
        fresh = []
        while waiting and len(running) < seats:
            fresh.append(waiting.pop(0))
            running.append(fresh[-1])
            log.event(now, fresh[-1], "scheduled" if jobs[fresh[-1]].scheduled is None else "resumed")
            if jobs[fresh[-1]].scheduled is None:
                jobs[fresh[-1]].scheduled = now
        start, now = now, now + 1.0
        for i in running:
            log.span(i, i in fresh, jobs[i].prompt + len(jobs[i].tokens) if i in fresh else 1)
            jobs[i].tokens.append(now)
        log.end_step(start, now, len(running), len(waiting))
        running = [i for i in running if len(jobs[i].tokens) < jobs[i].output]
    requests = [_request_row(i, job) for i, job in enumerate(jobs)]
    workload = [
        {name: row.get(name) for name in WORKLOAD.names} | {"warmup": job.warmup}
        for row, job in zip(requests, jobs, strict=True)
    ]
    return write_run(
        path, requests=requests, workload=workload, steps=log.steps, spans=log.spans, events=log.events
    )


class _Log:
    def __init__(self) -> None:
        self.steps: Rows = []
        self.spans: Rows = []
        self.events: Rows = []

    @property
    def step(self) -> int:
        return len(self.steps)

    def event(self, time: float, job: int, name: str) -> None:
        self.events.append(
            {"time": time, "request_id": f"r{job}", "replica": 0, "event": name, "step": self.step}
        )

    def span(self, job: int, prefill: bool, tokens: int) -> None:
        last = next((s for s in reversed(self.spans) if s["request_id"] == f"r{job}"), None)
        if not prefill and last and last["phase"] == "decode" and last["last_step"] == self.step - 1:
            last.update(last_step=self.step, tokens=last["tokens"] + 1, sampled=last["sampled"] + 1)
            return
        self.spans.append(
            {
                "request_id": f"r{job}",
                "replica": 0,
                "phase": "prefill" if prefill else "decode",
                "first_step": self.step,
                "last_step": self.step,
                "tokens": tokens,
                "sampled": 1,
            }
        )

    def end_step(self, start: float, end: float, num_running: int, num_waiting: int) -> None:
        self.steps.append(
            {
                "step": self.step,
                "num_steps": 1,
                "replica": 0,
                "start": start,
                "end": end,
                "num_running": num_running,
                "num_waiting": num_waiting,
                "sampled_tokens": num_running,
                "blocks_used": 3 * num_running,
                "blocks_cached": 1,
                "blocks_free": 99 - 3 * num_running,
            }
        )


def _request_row(i: int, job: Job) -> dict[str, Any]:
    row = {
        "request_id": f"r{i}",
        "source_row": i,
        "priority": 0,
        "tenant": job.tenant,
        "arrival": job.arrival,
        "submitted": job.arrival,
        "prompt_tokens": job.prompt,
        "max_tokens": job.output,
        "output_tokens": len(job.tokens),
        "recomputed_tokens": 0,
        "preemptions": job.preemptions,
        "finish_reason": "rejected",
    }
    if job.refused:
        return row
    return row | {
        "replica": 0,
        "first_scheduled": job.scheduled,
        "first_token": job.tokens[0],
        "finished": job.tokens[-1],
        "cached_prompt_tokens": job.prompt // 4,
        "finish_reason": "length",
    }


@pytest.fixture(scope="session")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`write(requests=…, steps=…)`: a run directory of these rows. `name=` names its folder."""
    return lambda name="run", **rows: write_run(tmp_path_factory.mktemp("runs") / name, **rows)


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, list[Job]]]:
    """`serve([{"arrival": 0.0, "prompt": 3, "output": 2}, …])`: the log of the naive engine, and the truth."""

    def run(jobs: Rows, name: str = "run", **how: Any) -> tuple[Path, list[Job]]:
        served = [Job(**job) for job in jobs]
        return run_naively(tmp_path_factory.mktemp("runs") / name, served, **how), served

    return run
