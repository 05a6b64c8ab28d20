"""What happens in which order on the simulated clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost import LinearCostModel
from sim.driver import Simulation
from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.engine.record.recorder import NullRecorder, StepTimes
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.policy.batch import ScheduledBatch
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.fcfs import FCFS
from tinyllm.policy.request import Request
from tinyllm.policy.scheduler import Scheduler

MS = 1_000_000
STEP = 10 * MS
"""Every step takes this long."""

Entry = tuple[int, str, str]


class Diary(NullRecorder):
    """Keeps (time, what, who) in the order in which the engine tells of it."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.times: list[StepTimes] = []

    def queued(self, record: ArrivalRecord, request: Request, now: int) -> None:
        self.entries.append((now, "queued", request.request_id))

    def rejected(
        self, record: ArrivalRecord, submitted: int, reason: str, taken_up: int | None = None
    ) -> None:
        self.entries.append((submitted, "rejected", record.request_id))

    def stepped(self, batch: ScheduledBatch, finished: list[Request], times: StepTimes, *errors: Any) -> None:
        self.times.append(times)
        self.entries.append((times.end, "stepped", " ".join(r.request_id for r in batch.requests)))

    def ready(self, now: int) -> None:
        self.entries.append((now, "ready", ""))


class DiaryPolicy(FCFS):
    """FCFS that writes into the diary when the scheduler begins to think."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def on_arrival(self, view: Request, now: int) -> None:
        self.diary.entries.append((now, "added", view.request_id))

    def on_finish(self, view: Request, now: int) -> None:
        self.diary.entries.append((now, "finished", view.request_id))


def request(number: int, arrival_ns: int, prompt: int = 1, output: int = 1) -> ArrivalRecord:
    return ArrivalRecord(f"r{number}", number, arrival_ns, prompt, output, output)


def simulate(
    records: list[ArrivalRecord], gap_s: float = 0.0, step_s: float = STEP / 1e9, **limits: Any
) -> tuple[Diary, Simulation]:
    diary = Diary()
    config = SchedulerConfig(**{"num_gpu_blocks": 100, **limits})
    core = EngineCore(Scheduler(config, DiaryPolicy(diary)), TargetLengthProcessor(), diary)
    simulation = Simulation(records, core, LinearCostModel(step_s, 0.0, 0.0, 0.0, gap_s=gap_s))
    simulation.run()
    assert core.num_unfinished == 0
    return diary, simulation


def steps(diary: Diary) -> list[tuple[int, str]]:
    """(end, requests) of each step."""
    return [(time, who) for time, what, who in diary.entries if what == "stepped"]


def test_at_one_instant_a_step_ends_then_arrivals_are_added_then_the_next_step_begins() -> None:
    diary, _ = simulate([request(0, 0, output=2), request(1, STEP), request(2, STEP)])
    assert diary.entries == [
        (0, "added", "r0"),
        (0, "queued", "r0"),
        (STEP, "stepped", "r0"),
        (STEP, "ready", ""),
        (STEP, "added", "r1"),
        (STEP, "queued", "r1"),
        (STEP, "added", "r2"),
        (STEP, "queued", "r2"),
        (2 * STEP, "finished", "r0"),
        (2 * STEP, "finished", "r1"),
        (2 * STEP, "finished", "r2"),
        (2 * STEP, "stepped", "r0 r1 r2"),
        (2 * STEP, "ready", ""),
    ]


@pytest.mark.parametrize(
    ("arrival", "end_of_its_step"), [(STEP - 1, 2 * STEP), (STEP, 2 * STEP), (STEP + 1, 3 * STEP)]
)
def test_an_arrival_joins_the_first_step_that_begins_at_or_after_it(
    arrival: int, end_of_its_step: int
) -> None:
    diary, _ = simulate([request(0, 0, output=4), request(1, arrival)])
    assert next(end for end, who in steps(diary) if "r1" in who) == end_of_its_step


def test_a_request_that_arrives_in_mid_step_is_added_at_its_end_and_counts_as_submitted_when_due() -> None:
    diary, _ = simulate([request(0, 0, output=2), request(1, 3)])
    assert (STEP, "added", "r1") in diary.entries
    assert (3, "queued", "r1") in diary.entries


def test_an_idle_engine_wakes_only_after_all_arrivals_of_one_stamp_are_added() -> None:
    at = 7 * STEP + 1
    diary, _ = simulate([request(0, 0), *(request(n, at) for n in (3, 1, 2))])
    assert steps(diary) == [(STEP, "r0"), (at + STEP, "r3 r1 r2")]


def test_an_idle_engine_makes_no_steps() -> None:
    diary, simulation = simulate([request(0, 0), request(1, 3600 * 1000 * MS)])
    assert len(diary.times) == 2
    assert simulation.now == 3600 * 1000 * MS + STEP


def test_the_gap_after_a_step_keeps_the_next_one_waiting_and_collects_arrivals() -> None:
    gap = 4 * MS
    records = [
        request(0, 0, output=2),
        request(1, STEP + 1),
        request(2, STEP + gap),
        request(3, STEP + gap + 1),
    ]
    diary, _ = simulate(records, gap_s=gap / 1e9)
    assert [(t.start, t.end) for t in diary.times] == [
        (0, STEP),
        (STEP + gap, 2 * STEP + gap),
        (2 * STEP + 2 * gap, 3 * STEP + 2 * gap),
    ]
    assert steps(diary)[1][1] == "r0 r1 r2"
    assert (STEP + gap, "ready", "") in diary.entries


def test_the_clock_counts_whole_nanoseconds_without_drift() -> None:
    # A third of a millisecond has no exact binary fraction; a float clock would drift over 10,000 steps.
    diary, simulation = simulate([request(0, 0, output=10_000)], step_s=0.000333333, num_gpu_blocks=1000)
    assert simulation.now == 10_000 * 333_333
    assert all(type(time) is int for times in diary.times for time in times)
    assert {times.end - times.start for times in diary.times} == {333_333}


def test_requests_of_one_stamp_are_added_in_the_order_of_the_workload() -> None:
    diary, _ = simulate([request(n, 0) for n in (5, 0, 4, 1)])
    assert [who for _, what, who in diary.entries if what == "added"] == ["r5", "r0", "r4", "r1"]


def test_progress_is_told_the_clock_and_the_requests_that_have_ended() -> None:
    told: list[tuple[int, int]] = []
    config = SchedulerConfig(num_gpu_blocks=100)
    core = EngineCore(Scheduler(config, FCFS()), TargetLengthProcessor())
    cost = LinearCostModel(0.001, 0.0, 0.0, 0.0)
    records = [request(0, 0), request(1, 0, prompt=10_000), request(2, 0, output=1500)]
    Simulation(records, core, cost, progress=lambda now, ended: told.append((now, ended))).run()
    assert told == [(512 * MS, 2), (1024 * MS, 2)], "one served, one refused, one still going"


@settings(deadline=None, max_examples=60)
@given(
    arrivals=st.lists(st.integers(0, 60), min_size=1, max_size=12),
    outputs=st.lists(st.integers(1, 5), min_size=12, max_size=12),
    step=st.integers(1, 9),
    gap=st.integers(0, 3),
)
def test_steps_are_back_to_back_while_there_is_work_and_start_at_arrivals_otherwise(
    arrivals: list[int], outputs: list[int], step: int, gap: int
) -> None:
    records = [request(n, at, output=outputs[n]) for n, at in enumerate(sorted(arrivals))]
    diary, _ = simulate(records, gap_s=gap / 1e9, step_s=step / 1e9, max_num_seqs=3)
    assert expected_starts(records, step, gap) == [times.start for times in diary.times]


def expected_starts(records: list[ArrivalRecord], step: int, gap: int) -> list[int]:
    """First come, first served over three seats, a token a step, by a plain loop over a plain clock."""
    waiting, running, starts, now = list(records), [], [], 0
    while waiting or running:
        if not running:
            now = max(now, waiting[0].arrival_ns)
        while waiting and waiting[0].arrival_ns <= now and len(running) < 3:
            running.append(waiting.pop(0).target_output_tokens)
        starts.append(now)
        running = [left - 1 for left in running if left > 1]
        now += step + gap
    return starts


def test_an_engine_whose_output_processor_does_not_know_lengths_is_refused() -> None:
    class Other:
        process: Callable[..., Any]
        remove: Callable[..., Any]

    core = EngineCore(Scheduler(SchedulerConfig(), FCFS()), Other())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="TargetLengthProcessor"):
        Simulation([], core, LinearCostModel(1.0, 0.0, 0.0, 0.0))
