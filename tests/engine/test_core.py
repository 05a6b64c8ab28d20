"""The engine's step around a real runner, aborts between steps, and what the simulation's output processor decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.engine.record.recorder import LogRecorder
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.engine.record.writer import LogWriter
from tinyllm.engine.runner import FakeRunner
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.fcfs import FCFS
from tinyllm.policy.request import FinishReason, Request
from tinyllm.policy.scheduler import Scheduler


def make_core(processor: TargetLengthProcessor, log: LogWriter | None = None, **options: int) -> EngineCore:
    scheduler = Scheduler(SchedulerConfig(**{"num_gpu_blocks": 50, **options}), FCFS())
    return EngineCore(scheduler, processor, LogRecorder(log, scheduler) if log else None)


def add(core: EngineCore, name: str, prompt: int, max_tokens: int, target: int, now: int = 0) -> Request:
    request = Request(name, prompt, max_tokens, now)
    record = ArrivalRecord(name, 0, now, prompt, max_tokens, target)
    assert core.add_request(record, request, now) is None
    assert isinstance(core.output_processor, TargetLengthProcessor)
    core.output_processor.add(request, target)
    return request


def run_to_the_end(core: EngineCore) -> int:
    now = 0
    while (batch := core.begin_step(now)) is not None:
        now += 1
        core.finish_step(batch, None, now)
        core.ready(now)
    return now


@pytest.fixture
def clock() -> Iterator[int]:
    """Every look at it is a microsecond later than the one before."""
    return iter(range(0, 10**9, 1000))


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "target", "max_model_len", "expected"),
    [
        (4, 9, 3, None, (3, FinishReason.STOP)),
        (4, 3, 3, None, (3, FinishReason.LENGTH)),
        (4, 2, 30, None, (2, FinishReason.LENGTH)),
        (4, 9, 30, 10, (6, FinishReason.LENGTH)),
        (9, 9, 30, 10, (1, FinishReason.LENGTH)),
        (4, 1, 1, None, (1, FinishReason.LENGTH)),
        (4, 2, 1, None, (1, FinishReason.STOP)),
    ],
)
def test_an_output_ends_at_its_target_at_max_tokens_or_at_the_end_of_the_context(
    prompt: int, max_tokens: int, target: int, max_model_len: int | None, expected: tuple[int, FinishReason]
) -> None:
    core = make_core(TargetLengthProcessor(max_model_len))
    request = add(core, "r0", prompt, max_tokens, target)
    run_to_the_end(core)
    assert (request.num_output_tokens, request.finish_reason) == expected


def test_generated_blocks_get_hashes_that_nobody_else_has() -> None:
    core = make_core(TargetLengthProcessor(block_size=4), block_size=4, enable_prefix_caching=True)
    requests = [add(core, name, 3, 12, 12) for name in ("r0", "r1")]
    run_to_the_end(core)
    first, second = ([block_hash for block_hash in r.block_hashes] for r in requests)
    assert len(first) == len(second) == (3 + 12) // 4
    assert not set(first) & set(second)


def test_a_refused_request_is_told_why_and_leaves_no_trace() -> None:
    core = make_core(TargetLengthProcessor(), num_gpu_blocks=2, block_size=4)
    record = ArrivalRecord("big", 0, 0, 30, 4, 4)
    reason = core.add_request(record, Request("big", 30, 4), 0)
    assert reason == "needs 9 KV blocks for 33 tokens, the pool has 2"
    assert core.num_unfinished == 0 and core.begin_step(0) is None


def test_an_abort_frees_what_a_request_held_and_an_unknown_one_is_no_error() -> None:
    core = make_core(TargetLengthProcessor(), block_size=4)
    request = add(core, "r0", 10, 5, 5)
    batch = core.begin_step(0)
    assert batch is not None
    core.finish_step(batch, None, 1)
    assert core.scheduler.kv.pool.num_used == 3
    assert core.abort("r0", 2)
    assert request.finish_reason is FinishReason.ABORT
    assert core.scheduler.kv.pool.num_used == core.num_unfinished == 0
    assert not core.abort("r0", 3) and not core.abort("stranger", 3)


def test_s7_a_prompt_aborted_after_its_first_chunk_and_sent_again_equals_a_fresh_run() -> None:
    def first_tokens(core: EngineCore, name: str) -> list[tuple[int, int]]:
        add(core, name, 20, 3, 3)
        chunks = []
        while (batch := core.begin_step(0)) is not None:
            chunks.append((batch.num_scheduled_tokens[0], batch.requests[0].num_computed_tokens))
            core.finish_step(batch, None, 1)
        return chunks

    fresh = first_tokens(make_core(TargetLengthProcessor(), max_num_batched_tokens=8), "r0")
    core = make_core(TargetLengthProcessor(), max_num_batched_tokens=8)
    add(core, "r0", 20, 3, 3)
    batch = core.begin_step(0)
    assert batch is not None and batch.num_scheduled_tokens == [8]
    core.finish_step(batch, None, 1)
    core.abort("r0", 1)
    assert first_tokens(core, "r0") == fresh == [(8, 0), (8, 8), (4, 16), (1, 20), (1, 21)]


def test_a_real_step_measures_scheduling_execution_and_the_gap_on_the_given_clock(
    tmp_path: Path, clock: Iterator[int]
) -> None:
    core = make_core(TargetLengthProcessor(), LogWriter(tmp_path))
    runner = FakeRunner()
    runner.add("r0", [1, 2, 3], None)
    add(core, "r0", 3, 2, 2)
    assert core.step(runner, clock.__next__) == []
    assert [request.request_id for request in core.step(runner, clock.__next__) or []] == ["r0"]
    assert core.step(runner, clock.__next__) is None
    core.recorder.close(10**9)
    steps = pq.read_table(tmp_path / "steps").to_pylist()
    assert [(s["start"], s["end"]) for s in steps] == [(0.0, 2e-6), (4e-6, 6e-6)]
    assert all(s["schedule_s"] == s["execute_s"] == s["gap_s"] == 1e-6 for s in steps)
    assert core.num_steps == 2


def test_the_fake_runner_samples_what_the_tokens_say_however_they_are_chunked() -> None:
    def tokens(**options: int) -> list[int]:
        core = make_core(TargetLengthProcessor(), **options)
        runner = FakeRunner()
        runner.add("r0", list(range(40)), None)
        add(core, "r0", 40, 6, 6)
        sampled: list[int] = []
        while (batch := core.begin_step(0)) is not None:
            result = runner.run(batch)
            sampled += [token for token in result.token_ids if token is not None]
            core.finish_step(batch, result, 1)
        return sampled

    assert tokens() == tokens(max_num_batched_tokens=7) == tokens(long_prefill_token_threshold=3)
    assert len(set(tokens())) > 3
