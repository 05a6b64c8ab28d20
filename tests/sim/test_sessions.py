"""Turns that wait for their predecessor, prompts that contain their history, clients that give up: to the ns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost import LinearCostModel
from sim.driver import Simulation
from sim.prefix import SessionHasher, prompt_hasher
from tinyllm.engine.clients import Clients
from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.engine.record.recorder import NullRecorder, StepTimes
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.engine.sessions import Turn, plan_turns
from tinyllm.policy.batch import ScheduledBatch
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.fcfs import FCFS
from tinyllm.policy.request import Request
from tinyllm.policy.scheduler import Scheduler

MS = 1_000_000
STEP = 10 * MS
"""Every step takes this long."""
BLOCK = 4


class Notes(NullRecorder):
    """Keeps when each request arrived and ended, why, and how much of its prompt was cached."""

    def __init__(self) -> None:
        self.arrival: dict[str, int] = {}
        self.end: dict[str, tuple[int, str]] = {}
        self.cached: dict[str, int] = {}
        self.steps: list[tuple[int, str]] = []

    def queued(self, record: ArrivalRecord, request: Request, now: int) -> None:
        self.arrival[record.request_id] = record.arrival_ns
        assert now == record.arrival_ns == request.arrival

    def rejected(
        self, record: ArrivalRecord, submitted: int, reason: str, taken_up: int | None = None
    ) -> None:
        self.arrival[record.request_id] = record.arrival_ns
        self.end[record.request_id] = (submitted, "rejected")

    def aborted(self, request: Request, now: int) -> None:
        self.end[request.request_id] = (now, "abort")

    def stepped(self, batch: ScheduledBatch, finished: list[Request], times: StepTimes, *errors: Any) -> None:
        self.steps.append((times.end, " ".join(request.request_id for request in batch.requests)))
        self.cached |= {request.request_id: request.num_cached_tokens for request in batch.admitted}
        for request in finished:
            assert request.finish_reason is not None
            self.end[request.request_id] = (times.end, request.finish_reason.value)


class HoldsR0(FCFS):
    """Never starts the first request."""

    def key(self, view: Request, now: int) -> Any:
        return None if view.request_id == "r0" else super().key(view, now)


def row(number: int, arrival_ns: int, prompt: int = 1, output: int = 1, **more: Any) -> ArrivalRecord:
    return ArrivalRecord(f"r{number}", number, arrival_ns, prompt, output, output, session="s", **more)


def serve(
    records: Sequence[ArrivalRecord],
    turns: Mapping[str, Turn],
    *,
    closed: bool = True,
    timeout_ns: int | None = None,
    prefix_block_size: int | None = None,
    policy: FCFS | None = None,
    step_ns: int = STEP,
    **limits: Any,
) -> tuple[Notes, int]:
    """Run with a prefix cache that knows the turns; what happened, and the time at the end."""
    notes = Notes()
    config = SchedulerConfig(
        **{"num_gpu_blocks": 200, "block_size": BLOCK, "enable_prefix_caching": True, **limits}
    )
    core = EngineCore(Scheduler(config, policy or FCFS()), TargetLengthProcessor(block_size=BLOCK), notes)
    hasher = SessionHasher(records, turns, BLOCK, prefix_block_size)
    simulation = Simulation(
        Clients(records, turns if closed else None, timeout_ns),
        core,
        LinearCostModel(step_ns / 1e9, 0.0, 0.0, 0.0),
        lambda record: hasher.start(record, record.arrival_ns),
        on_end=hasher.end,
    )
    simulation.run()
    assert core.num_unfinished == 0
    return notes, simulation.now


# ── closed sessions ──────────────────────────────────────────────────────────────────────────────────


def test_three_turns_come_at_the_end_of_the_one_before_and_the_think_time() -> None:
    records = [row(0, 0, output=2), row(1, 1), row(2, 2, output=3)]
    turns = {"r1": Turn("r0", None, 5 * MS + 1), "r2": Turn("r1", None, 0)}
    notes, now = serve(records, turns)
    assert notes.arrival == {"r0": 0, "r1": 25 * MS + 1, "r2": 35 * MS + 1}
    assert now == notes.end["r2"][0] == 65 * MS + 1


def test_a_turn_without_think_time_joins_the_very_next_step_in_the_order_of_the_workload() -> None:
    records = [row(0, 0, output=1), row(1, 0, output=2), row(2, 3), row(3, STEP)]
    notes, _ = serve(records, {"r2": Turn("r0", None, 0)})
    assert notes.arrival["r2"] == STEP
    assert notes.steps == [(STEP, "r0 r1"), (2 * STEP, "r1 r2 r3")]


def test_a_turn_that_becomes_due_in_mid_step_counts_from_its_due_time() -> None:
    records = [row(0, 0), row(1, 0, output=5), row(2, 0)]
    notes, _ = serve(records, {"r2": Turn("r0", None, 3 * MS)})
    assert notes.arrival["r2"] == 13 * MS and (30 * MS, "r1 r2") in notes.steps


def test_a_refused_turn_ends_at_once_and_the_next_one_comes_all_the_same() -> None:
    records = [row(0, 2 * MS, prompt=10_000), row(1, 3 * MS), row(2, 4 * MS)]
    notes, _ = serve(records, {"r1": Turn("r0", None, 7 * MS), "r2": Turn("r1", None, MS)})
    assert notes.end["r0"] == (2 * MS, "rejected")
    assert notes.arrival == {"r0": 2 * MS, "r1": 9 * MS, "r2": 20 * MS}


def test_a_slower_device_makes_the_turns_of_closed_sessions_come_later_and_not_those_of_open_ones() -> None:
    records = [row(n, n * MS, output=4) for n in range(5)]
    turns = {f"r{n}": Turn(f"r{n - 1}", None, 2 * MS) for n in range(1, 5)}
    for step in (MS, 7 * MS):
        closed, _ = serve(records, turns, step_ns=step)
        assert list(closed.arrival.values()) == [n * (4 * step + 2 * MS) for n in range(5)]
        opened, _ = serve(records, turns, closed=False, step_ns=step)
        assert list(opened.arrival.values()) == [n * MS for n in range(5)]


sessions_of_rows = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 24), st.integers(1, 6), st.integers(0, 2)), max_size=14
)


@settings(deadline=None, max_examples=60)
@given(rows=sessions_of_rows, think=st.integers(0, 25), timeout=st.none() | st.integers(1, 60))
def test_every_turn_of_a_closed_session_arrives_at_the_end_of_its_predecessor_and_the_think_time(
    rows: list[tuple[int, int, int, int]], think: int, timeout: int | None
) -> None:
    records = [
        ArrivalRecord(f"r{n}", n, at, prompt, output, output, session=str(session))
        for n, (at, prompt, output, session) in enumerate(sorted(rows))
    ]
    turns = plan_turns(records, None, lambda before, turn: think)
    notes, now = serve(
        records, turns, timeout_ns=timeout, step_ns=7, num_gpu_blocks=9, max_model_len=27, max_num_seqs=3
    )
    assert notes.arrival.keys() == notes.end.keys() == {record.request_id for record in records}
    for record in records:
        turn = turns.get(record.request_id)
        due = record.arrival_ns if turn is None else notes.end[turn.after][0] + think
        assert notes.arrival[record.request_id] == due
    ends = [end for end, _ in notes.end.values()]
    assert now == max([*ends, 0]), "nothing that nobody waits for prolongs the run"
    if timeout is None:
        assert all(reason != "abort" for _, reason in notes.end.values())


# ── content ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_turn_hits_the_prompt_and_the_answer_of_the_one_before() -> None:
    # 10 prompt and 7 output tokens: the last one is not computed, so 4 of 17 // 4 full blocks are there.
    records = [row(0, 0, prompt=10, output=7), row(1, 0, prompt=20)]
    notes, _ = serve(records, {"r1": Turn("r0", "r0", MS)})
    assert notes.cached == {"r0": 0, "r1": 16}


def test_a_full_block_whose_last_token_was_sampled_last_is_no_hit() -> None:
    records = [row(0, 0, prompt=10, output=6), row(1, 0, prompt=20)]
    notes, _ = serve(records, {"r1": Turn("r0", "r0", MS)})
    assert notes.cached == {"r0": 0, "r1": 12}


def test_a_turn_that_overtakes_its_predecessor_hits_its_prompt_only() -> None:
    records = [row(0, 0, prompt=10, output=7), row(1, 3 * STEP, prompt=20)]
    notes, _ = serve(records, {"r1": Turn("r0", "r0", 0)}, closed=False)
    assert notes.cached == {"r0": 0, "r1": 8}


def test_the_history_grows_over_turns_also_where_the_trace_has_ids() -> None:
    ids = [tuple(range(-(-prompt // BLOCK))) for prompt in (8, 20, 32)]
    records = [row(n, n, prompt, 8, prefix_ids=ids[n]) for n, prompt in enumerate((8, 20, 32))]
    turns = plan_turns(records, BLOCK, lambda before, turn: MS)
    assert turns == {"r1": Turn("r0", "r0", MS), "r2": Turn("r1", "r1", MS)}
    notes, _ = serve(records, turns, prefix_block_size=BLOCK)
    # Without the sessions only the ids of prompts would hit: 8 and 20.
    assert notes.cached == {"r0": 0, "r1": 12, "r2": 24}


@pytest.mark.parametrize(("output", "hit"), [(2, 8), (6, 12)])
def test_what_follows_a_generated_answer_is_not_shared_with_a_row_that_only_has_its_ids(
    output: int, hit: int
) -> None:
    ids = tuple(range(5))
    records = [
        row(0, 0, 8, output, prefix_ids=ids[:2]),
        row(1, 0, 20, prefix_ids=ids),
        ArrivalRecord("r2", 2, 100 * STEP, 20, 1, 1, session="other", prefix_ids=ids),
    ]
    notes, _ = serve(records, {"r1": Turn("r0", "r0", 0)}, prefix_block_size=BLOCK)
    assert notes.cached == {"r0": 0, "r1": hit, "r2": 8}


def test_turns_that_inherit_a_prompt_its_answer_too_or_neither_share_what_all_of_them_begin_with() -> None:
    ids = tuple(range(6))
    records = [
        row(0, 0, 10, 3, prefix_ids=(0, 1, 90)),  # two tokens of a block that no other row has
        row(1, STEP, 20, prefix_ids=ids[:5]),
        row(2, 50 * STEP, 21, prefix_ids=ids),
        ArrivalRecord("r3", 3, 100 * STEP, 21, 1, 1, session="other", prefix_ids=ids),
    ]
    turns = {"r1": Turn("r0", "r0", 0), "r2": Turn("r1", "r0", 0)}
    notes, _ = serve(records, turns, closed=False, prefix_block_size=BLOCK)
    assert notes.cached == {"r0": 0, "r1": 8, "r2": 12, "r3": 8}


def test_a_prompt_that_is_inherited_whole_by_its_ids_stays_shared_with_everybody() -> None:
    ids = tuple(range(5))
    records = [
        row(0, 0, 8, 6, prefix_ids=ids[:2]),
        row(1, STEP, 20, prefix_ids=ids),
        ArrivalRecord("r2", 2, 100 * STEP, 21, 1, 1, session="other", prefix_ids=(*ids, 9)),
    ]
    notes, _ = serve(records, {"r1": Turn("r0", "r0", 0)}, closed=False, prefix_block_size=BLOCK)
    assert notes.cached == {"r0": 0, "r1": 8, "r2": 20}


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 99), st.integers(1, 24), st.integers(1, 6), st.integers(0, 3)), max_size=10
    )
)
def test_open_sessions_without_containment_are_served_as_if_there_were_none(
    rows: list[tuple[int, int, int, int]],
) -> None:
    records = [
        row(n, at, prompt, output, prefix_ids=tuple((first, i)[i > 0] for i in range(-(-prompt // BLOCK))))
        for n, (at, prompt, output, first) in enumerate(sorted(rows))
    ]
    turns = {f"r{n}": Turn(f"r{n - 1}", None, 3) for n in range(1, len(records))}
    notes, _ = serve(records, turns, closed=False, prefix_block_size=BLOCK, step_ns=7, num_gpu_blocks=9)
    plain = Notes()
    config = SchedulerConfig(num_gpu_blocks=9, block_size=BLOCK, enable_prefix_caching=True)
    core = EngineCore(Scheduler(config, FCFS()), TargetLengthProcessor(block_size=BLOCK), plain)
    Simulation(records, core, LinearCostModel(7e-9, 0.0, 0.0, 0.0), prompt_hasher(BLOCK, BLOCK)).run()
    assert vars(notes) == vars(plain)


# ── clients that give up ─────────────────────────────────────────────────────────────────────────────


def test_a_client_gives_up_at_the_end_of_the_step_in_which_its_time_is_over() -> None:
    notes, now = serve([row(0, 0, output=10)], {}, timeout_ns=25 * MS)
    assert notes.end == {"r0": (30 * MS, "abort")} and now == 30 * MS


def test_a_request_that_ends_with_the_step_in_which_its_time_is_over_has_ended_well() -> None:
    for timeout in (25 * MS, 30 * MS):
        notes, _ = serve([row(0, 0, output=3)], {}, timeout_ns=timeout)
        assert notes.end == {"r0": (30 * MS, "length")}


def test_a_client_of_an_idle_engine_gives_up_exactly_when_its_time_is_over() -> None:
    notes, now = serve([row(0, 0), row(1, 5)], {}, timeout_ns=33 * MS + 7, policy=HoldsR0())
    assert notes.end == {"r0": (33 * MS + 7, "abort"), "r1": (5 + STEP, "length")}
    assert now == 33 * MS + 7


def test_a_turn_comes_after_the_think_time_also_where_its_predecessor_was_given_up() -> None:
    notes, _ = serve(
        [row(0, 0), row(1, 0)], {"r1": Turn("r0", None, MS)}, timeout_ns=33 * MS, policy=HoldsR0()
    )
    assert notes.arrival["r1"] == 34 * MS and notes.end["r1"] == (44 * MS, "length")


def test_a_timeout_that_nobody_needs_does_not_prolong_the_simulation() -> None:
    _, now = serve([row(0, 0), row(1, STEP)], {}, timeout_ns=3600 * 1000 * MS)
    assert now == 2 * STEP


def test_a_request_that_comes_and_is_given_up_within_one_step_is_never_computed() -> None:
    notes, _ = serve([row(0, 0, output=1), row(1, MS)], {}, timeout_ns=4 * MS)
    assert notes.end == {"r0": (STEP, "length"), "r1": (STEP, "abort")}
    assert notes.steps == [(STEP, "r0")]
