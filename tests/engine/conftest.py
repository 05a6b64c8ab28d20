"""Random worlds: an engine with a log, stepped by hand, beside a brute-force recorder that looks at every row."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from sim.driver import request_from
from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.engine.record.recorder import LogRecorder
from tinyllm.engine.record.schema import REQUESTS, TABLES
from tinyllm.engine.record.workload import NS, ArrivalRecord
from tinyllm.engine.record.writer import LogWriter
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.fcfs import FCFS
from tinyllm.policy.registry import POLICIES
from tinyllm.policy.request import FinishReason, Request, RequestState
from tinyllm.policy.scheduler import Scheduler

Row = dict[str, Any]
Tables = dict[str, list[Row]]
BLOCK = 2


class HoldsByTurns(FCFS):
    """Holds every third request at each instant, in turns: decoding requests pause and go on."""

    stable_waiting = False

    def key(self, view: Request, now: int) -> tuple[int, int] | None:
        return None if (view.index + now) % 3 == 0 else super().key(view, now)

    def decode_horizon(self, running: Any, waiting: int, now: int) -> int:
        return 1


@dataclass
class World:
    """One random run: what arrives before which step, who is aborted there, how long steps take."""

    config: SchedulerConfig
    policy: str
    requests: list[tuple[int, ArrivalRecord, list[int]]]
    aborts: list[tuple[int, int]]
    durations: list[int]
    num_steps: int
    flush_rows: int


@st.composite
def worlds(draw: st.DrawFn) -> World:
    caching = draw(st.booleans())
    config = SchedulerConfig(
        max_num_seqs=draw(st.sampled_from([4, 6, 1])),
        max_num_batched_tokens=draw(st.sampled_from([8, 3, 12])),
        block_size=BLOCK,
        num_gpu_blocks=draw(st.sampled_from([9, 14, 7])),
        max_model_len=draw(st.sampled_from([None, 14])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 2])),
        enable_prefix_caching=caching,
        admission=draw(st.sampled_from(["first-chunk", "first-chunk", "full-prompt", "reserve-output"])),
        watermark=draw(st.sampled_from([0.0, 0.2])),
    )
    requests = []
    for number in range(draw(st.integers(3, 9))):
        prompt, target = draw(st.integers(1, 9)), draw(st.sampled_from([1, 2, 4, 7, 9]))
        prefix = [100 * draw(st.integers(0, 1)) + block for block in range(prompt // BLOCK)]
        record = ArrivalRecord(
            f"r{number}",
            source_row=10 + number,
            arrival_ns=draw(st.integers(0, 40)),
            prompt_tokens=prompt,
            max_tokens=draw(st.integers(target, target + 3)),
            target_output_tokens=target,
            priority=draw(st.integers(0, 2)),
            tenant=draw(st.sampled_from([None, "a", "ü"])),
        )
        requests.append((draw(st.integers(0, 6)), record, prefix if caching else []))
    requests.sort(key=lambda entry: entry[0])
    aborts = draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=4))
    return World(
        config,
        draw(st.sampled_from(["holds", "holds", *POLICIES])),
        requests,
        aborts,
        draw(st.lists(st.integers(1, 50), min_size=2, max_size=5)),
        # Some runs are cut off, as by an interrupt, with requests still unfinished.
        num_steps=draw(st.sampled_from([400, 400, 12])),
        flush_rows=1000,
    )


@dataclass
class BruteForce:
    """Keeps every (step, request, computed before, scheduled, decoding, sampled) and derives the tables from it."""

    rows: list[tuple[int, str, int, int, bool, int]] = field(default_factory=list)
    steps: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    requests: dict[str, Row] = field(default_factory=dict)
    token_times: dict[str, list[int]] = field(default_factory=dict)

    def event(self, now: int, request_id: str, event: str, detail: str | None = None) -> None:
        row = {"time": now / NS, "request_id": request_id, "replica": 0, "event": event}
        self.events.append(row | {"step": len(self.steps), "detail": detail})

    def added(self, record: ArrivalRecord, now: int, refused: str | None) -> None:
        columns = ("request_id", "source_row", "tenant", "session", "priority")
        lengths = ("prompt_tokens", "max_tokens", "target_output_tokens")
        counters = dict.fromkeys(("replica", "output_tokens", "recomputed_tokens", "preemptions"), 0)
        self.requests[record.request_id] = {
            **dict.fromkeys(REQUESTS.names),
            **{name: getattr(record, name) for name in columns + lengths},
            **counters,
            "arrival": record.arrival_ns / NS,
            "submitted": now / NS,
            "submitted_step": len(self.steps),
            "finish_reason": None if refused is None else "rejected",
            "error": refused,
        }
        self.event(now, record.request_id, "queued" if refused is None else "rejected", refused)

    def ended(self, request: Request, now: int, event: str, reason: FinishReason) -> None:
        row = self.requests[request.request_id]
        row["finish_reason"] = reason.value
        row["finished"] = None if event == "unfinished" else now / NS
        self.event(now, request.request_id, event, reason.value)

    def spans(self) -> list[Row]:
        """Neighbouring rows of one request join if they are of one phase, and nothing came between them."""
        spans: list[Row] = []
        open_spans: dict[str, Row] = {}
        preempted = {(e["request_id"], e["step"]) for e in self.events if e["event"] == "preempted"}
        for step, request_id, _, num_new, decoding, sampled in self.rows:
            phase = "decode" if decoding else "prefill"
            span = open_spans.get(request_id)
            joins = span and span["phase"] == phase and span["last_step"] == step - 1
            if joins and (request_id, step) not in preempted and (decoding or not span["sampled"]):
                span["last_step"] = step
                span["tokens"] += num_new
                span["sampled"] += sampled
                continue
            ids = {"request_id": request_id, "replica": 0, "phase": phase}
            span = ids | {"first_step": step, "last_step": step, "tokens": num_new, "sampled": sampled}
            spans.append(span)
            open_spans[request_id] = span
        return spans

    def tables(self) -> Tables:
        tables = {"requests": list(self.requests.values()), "steps": self.steps}
        return tables | {"spans": self.spans(), "events": self.events}


class Engine:
    """An engine with a log, stepped by hand, and the brute force looking over its shoulder."""

    def __init__(self, world: World, directory: Path) -> None:
        caching = world.config.enable_prefix_caching
        self.world = world
        self.scheduler = Scheduler(
            world.config, HoldsByTurns() if world.policy == "holds" else POLICIES[world.policy]()
        )
        self.outputs = TargetLengthProcessor(world.config.max_model_len, BLOCK if caching else None)
        self.recorder = LogRecorder(LogWriter(directory, world.flush_rows), self.scheduler)
        self.core = EngineCore(self.scheduler, self.outputs, self.recorder)
        self.truth = BruteForce()
        self.now = 0

    def run(self) -> BruteForce:
        waiting = list(self.world.requests)
        for turn in range(self.world.num_steps):
            while waiting and (waiting[0][0] <= turn or not self.core.num_unfinished):
                self.add(*waiting.pop(0)[1:])
            for due, number in self.world.aborts:
                if due == turn:
                    self.abort(f"r{number}")
            if not self.step(self.world.durations[turn % len(self.world.durations)]) and not waiting:
                break
        for request in self.scheduler.unfinished():
            self.truth.ended(request, self.now, "unfinished", FinishReason.UNFINISHED)
        self.recorder.close(self.now)
        return self.truth

    def add(self, record: ArrivalRecord, hashes: list[int]) -> None:
        request = request_from(record, hashes)
        refused = self.core.add_request(record, request, self.now)
        self.truth.added(record, self.now, refused)
        if refused is None:
            self.outputs.add(request, record.target_output_tokens)

    def abort(self, request_id: str) -> None:
        request = self.scheduler.get(request_id)
        assert self.core.abort(request_id, self.now) == (request is not None)
        if request is not None:
            self.truth.ended(request, self.now, "aborted", FinishReason.ABORT)

    def step(self, duration: int) -> bool:
        truth, start = self.truth, self.now
        high_water = {r.request_id: r.computed_high_water for r in self.scheduler.unfinished()}
        resident = {r.request_id: (r.num_computed_tokens, r.is_decoding) for r in self.scheduler.running}
        batch = self.core.begin_step(start)
        if batch is None:
            self.now += 1
            return bool(self.scheduler.unfinished())
        step = len(truth.steps)
        for request in batch.preempted:
            truth.event(start, request.request_id, "preempted")
            truth.requests[request.request_id]["preemptions"] += 1
            computed, _ = resident.pop(request.request_id)
            high_water[request.request_id] = max(high_water[request.request_id], computed)
        for request in batch.admitted:
            row = truth.requests[request.request_id]
            fresh = row["first_scheduled"] is None
            truth.event(start, request.request_id, "scheduled" if fresh else "resumed")
            if fresh:
                row |= {"first_scheduled": start / NS, "cached_prompt_tokens": request.num_cached_tokens}
            resident[request.request_id] = (request.num_cached_tokens, False)
        rows = []
        for request, num_new in zip(batch.requests, batch.num_scheduled_tokens, strict=True):
            computed, decoding = resident[request.request_id]
            assert computed == request.num_computed_tokens
            sampled = int(computed + num_new == request.num_tokens)
            rows.append((step, request.request_id, computed, num_new, decoding, sampled))
            row = truth.requests[request.request_id]
            redone = min(computed + num_new, high_water[request.request_id]) - computed
            row["recomputed_tokens"] += max(0, redone)
            row["output_tokens"] += sampled
        self.now = end = start + duration
        finished = self.core.finish_step(batch, None, end)
        for _, request_id, *_, sampled in rows:
            if sampled:
                times = truth.token_times.setdefault(request_id, [])
                times.append(end)
                if len(times) == 1:
                    truth.event(end, request_id, "first_token")
                    truth.requests[request_id]["first_token"] = end / NS
        for request in finished:
            assert request.finish_reason is not None
            truth.ended(request, end, "finished", request.finish_reason)
        self.now += duration % 3
        self.core.ready(self.now)
        truth.rows += rows
        truth.steps.append(self.step_row(step, start, end, rows, batch, len(finished)))
        return True

    def step_row(self, step: int, start: int, end: int, rows: list[Any], batch: Any, finished: int) -> Row:
        decodes = [row for row in rows if row[4]]
        prefills = [row for row in rows if not row[4]]
        owned = {block for request in self.scheduler.running for block in request.block_ids}
        order = self.scheduler.kv.pool.free_order()
        hashes = getattr(self.scheduler.kv.pool, "_hash_of", ())
        cached = sum(block in hashes for block in order)
        return {
            "step": step,
            "num_steps": 1,
            "replica": 0,
            "start": start / NS,
            "end": end / NS,
            "gap_s": (self.now - end) / NS,
            "schedule_s": 0.0,
            "execute_s": (end - start) / NS,
            "num_running": sum(r.state is RequestState.RUNNING for r in self.scheduler.unfinished()),
            "num_waiting": sum(r.state is not RequestState.RUNNING for r in self.scheduler.unfinished()),
            "prefill_seqs": len(prefills),
            "decode_seqs": len(decodes),
            "prefill_tokens": sum(row[3] for row in prefills),
            "decode_tokens": sum(row[3] for row in decodes),
            "sampled_tokens": sum(row[5] for row in rows),
            "prefill_attention_pairs": sum(x + i + 1 for _, _, x, p, _, _ in prefills for i in range(p)),
            "decode_context_tokens": sum(row[2] + 1 for row in decodes),
            "blocks_used": len(owned),
            "blocks_cached": cached,
            "blocks_free": len(order) - cached,
            "admitted": len(batch.admitted),
            "preempted": len(batch.preempted),
            "finished": finished,
        }


def run_world(world: World) -> tuple[BruteForce, Tables]:
    with tempfile.TemporaryDirectory() as scratch:
        truth = Engine(world, Path(scratch)).run()
        tables = {name: pq.read_table(Path(scratch) / name).to_pylist() for name in TABLES}
    return truth, tables


@pytest.fixture(scope="session")
def world() -> st.SearchStrategy[World]:
    """Strategy of random worlds."""
    return worlds()


@pytest.fixture(scope="session")
def run_in() -> Callable[[World], tuple[BruteForce, Tables]]:
    """`run_in(world)`: the brute force, and the tables that the recorder wrote."""
    return run_world
