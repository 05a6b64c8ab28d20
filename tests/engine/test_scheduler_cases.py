"""Cases from the field through the real engine: scheduler and KV blocks (S1 to S12)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from tinyllm.engine.llm import LLM
from tinyllm.engine.llm_engine import RequestOutput
from tinyllm.engine.real import RealEngine
from tinyllm.engine.record.recorder import LogRecorder
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.engine.record.writer import LogWriter
from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.policy.batch import ScheduledBatch
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.priority import Priority
from tinyllm.policy.request import Request


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)


def prompt_of(length: int, salt: int = 0) -> list[int]:
    return [(salt * 37 + i * i) % 251 for i in range(length)]


def watch(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[ScheduledBatch]:
    """The batches that the engine schedules from now on."""
    batches: list[ScheduledBatch] = []
    schedule = llm.engine.scheduler.schedule

    def watched(now: int) -> ScheduledBatch | None:
        batch = schedule(now)
        if batch is not None:
            batches.append(batch)
        return batch

    monkeypatch.setattr(llm.engine.scheduler, "schedule", watched)
    return batches


def drain(llm: LLM) -> dict[str, RequestOutput]:
    finished = {}
    while llm.has_unfinished:
        finished |= {output.request_id: output for output in llm.step() if output.finished}
    return finished


def test_s1_a_prompt_that_fills_the_pool_and_wants_more_is_refused(tiny_llama: Any) -> None:
    llm = LLM(tiny_llama.directory, block_size=4, num_gpu_blocks=2)
    full, fits = llm.generate([prompt_of(8), prompt_of(8)], [greedy(5), greedy(1)])
    assert full.error == "needs 3 KV blocks for 12 tokens, the pool has 2"
    assert list(fits.token_ids) == tiny_llama.greedy(prompt_of(8), 1)


def test_s2_a_request_over_the_pool_is_refused_alone(tiny_llama: Any) -> None:
    llm = LLM(tiny_llama.directory, block_size=4, num_gpu_blocks=16)
    large, small = llm.generate([prompt_of(100), prompt_of(5)], greedy(4))
    assert "the pool has 16" in str(large.error)
    assert list(small.token_ids) == tiny_llama.greedy(prompt_of(5), 4)


def test_s3_several_victims_in_one_step_change_no_token(
    tiny_llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(
        tiny_llama.directory, block_size=2, num_gpu_blocks=20, max_num_batched_tokens=64, policy="priority"
    )
    batches = watch(llm, monkeypatch)
    prompts = [prompt_of(5, salt) for salt in range(4)]
    for number, prompt in enumerate(prompts):
        llm.add_request(str(number), prompt, greedy(9), priority=9)
    llm.step()
    llm.add_request("urgent", prompt_of(30), greedy(4), priority=0)
    finished = drain(llm)
    assert max(len(batch.preempted) for batch in batches) >= 2
    for batch in batches:
        assert len({request.request_id for request in batch.requests}) == len(batch.requests)
    for number, prompt in enumerate(prompts):
        assert list(finished[str(number)].token_ids) == tiny_llama.greedy(prompt, 9)
    assert list(finished["urgent"].token_ids) == tiny_llama.greedy(prompt_of(30), 4)


def test_s4_what_a_step_has_scheduled_is_never_its_victim(
    tiny_llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(tiny_llama.directory, block_size=2, num_gpu_blocks=12, policy="priority")
    batches = watch(llm, monkeypatch)
    prompts = {f"{salt}": prompt_of(4 + salt, salt) for salt in range(5)}
    for number, (request_id, prompt) in enumerate(prompts.items()):
        llm.add_request(request_id, prompt, greedy(10), priority=5 - number)
        llm.step()
    finished = drain(llm)
    assert any(batch.preempted for batch in batches)
    for batch in batches:
        scheduled = {request.request_id for request in batch.requests}
        assert not scheduled & {request.request_id for request in batch.preempted}
    for request_id, prompt in prompts.items():
        assert list(finished[request_id].token_ids) == tiny_llama.greedy(prompt, 10)


def test_s5_cached_tokens_are_not_scheduled_again(
    make_checkpoint: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = make_checkpoint(max_position_embeddings=512)
    llm = LLM(checkpoint.directory, block_size=16, num_gpu_blocks=64)
    prompt = prompt_of(465)
    llm.generate([prompt[:256]], greedy(1))
    batches = watch(llm, monkeypatch)
    [output] = llm.generate([prompt], greedy(3))
    assert (batches[0].num_tokens, output.num_cached_tokens) == (209, 256)
    assert list(output.token_ids) == checkpoint.greedy(prompt, 3)


@pytest.mark.parametrize("together", [False, True])
def test_s6_a_fully_cached_prompt_still_computes_a_token(
    tiny_llama: Any, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(tiny_llama.directory, block_size=4, num_gpu_blocks=64)
    batches = watch(llm, monkeypatch)
    prompt = prompt_of(16)
    if together:
        first, second = llm.generate([prompt, prompt], greedy(5))
    else:
        [first], [second] = llm.generate([prompt], greedy(5)), llm.generate([prompt], greedy(5))
        assert second.num_cached_tokens == 12
    assert all(tokens >= 1 for batch in batches for tokens in batch.num_scheduled_tokens)
    assert list(first.token_ids) == list(second.token_ids) == tiny_llama.greedy(prompt, 5)


def test_s7_a_prompt_aborted_after_its_first_chunk_can_come_again(tiny_llama: Any) -> None:
    llm = LLM(tiny_llama.directory, block_size=4, num_gpu_blocks=64, max_num_batched_tokens=6)
    llm.add_request("r", prompt_of(20), greedy(5))
    llm.step()
    assert llm.engine.scheduler.get("r").num_computed_tokens == 6  # type: ignore[union-attr]
    llm.abort("r")
    llm.add_request("r", prompt_of(20), greedy(5))
    outputs = []
    while llm.has_unfinished:
        outputs += [output for output in llm.step() if output.finished]
    assert [output.finish_reason for output in outputs] == ["abort", "length"]
    assert list(outputs[1].token_ids) == tiny_llama.greedy(prompt_of(20), 5)


def test_s8_a_half_full_last_block_takes_another_token_when_none_is_free(tiny_llama: Any) -> None:
    llm = LLM(tiny_llama.directory, block_size=4, num_gpu_blocks=3)
    [output] = llm.generate([prompt_of(10)], greedy(3))
    assert output.error is None
    assert list(output.token_ids) == tiny_llama.greedy(prompt_of(10), 3)


def test_s9_a_preempted_request_keeps_its_first_times(tiny_llama: Any, tmp_path: Path) -> None:
    config = SchedulerConfig(block_size=2, num_gpu_blocks=10, max_model_len=64)
    writer = LogWriter(tmp_path)
    engine = RealEngine(
        tiny_llama.directory, config, Priority(), recorder=lambda scheduler: LogRecorder(writer, scheduler)
    )
    for number in range(3):
        record = ArrivalRecord(f"r{number}", number, engine.clock(), 5, 8, 8, priority=3 - number)
        assert engine.add_request(record, prompt_of(5, number), greedy(8), engine.clock()) is None
        engine.step()
    while engine.step() is not None:
        pass
    engine.core.recorder.close(engine.clock())
    rows = pq.read_table(tmp_path / "requests").to_pylist()
    assert sum(row["preemptions"] for row in rows) >= 1
    for row in rows:
        times = [row[name] for name in ("arrival", "submitted", "first_scheduled", "first_token", "finished")]
        assert times == sorted(times)
    steps = pq.read_table(tmp_path / "steps").to_pylist()
    events = pq.read_table(tmp_path / "events").to_pylist()
    first = {e["request_id"]: e["time"] for e in reversed(events) if e["event"] == "scheduled"}
    assert first == {row["request_id"]: row["first_scheduled"] for row in rows}
    assert all(step["execute_s"] > 0 and step["gap_s"] >= 0 for step in steps)


def test_s10_an_id_in_use_is_refused_and_its_owner_unharmed(tiny_llama: Any) -> None:
    llm = LLM(tiny_llama.directory, num_gpu_blocks=64)
    llm.add_request("same", prompt_of(5), greedy(6))
    llm.step()
    llm.add_request("same", prompt_of(9), greedy(6))
    outputs = [output for output in llm.step() if output.finished]
    assert "'same' is not finished yet" in str(outputs[0].error)
    assert list(drain(llm)["same"].token_ids) == tiny_llama.greedy(prompt_of(5), 6)
    llm.add_request("same", prompt_of(9), greedy(6))
    assert list(drain(llm)["same"].token_ids) == tiny_llama.greedy(prompt_of(9), 6)


def test_s11_a_flood_against_a_small_pool_ends_with_few_preemptions(tiny_llama: Any) -> None:
    llm = LLM(tiny_llama.directory, block_size=4, num_gpu_blocks=30)
    for number in range(40):
        llm.add_request(str(number), prompt_of(20, number), greedy(10))
    requests: list[Request] = llm.engine.scheduler.unfinished()
    finished = drain(llm)
    assert len(finished) == 40 and {o.finish_reason for o in finished.values()} == {"length"}
    assert 0 < sum(request.num_preemptions for request in requests) <= 40
    assert all(
        list(finished[str(n)].token_ids) == tiny_llama.greedy(prompt_of(20, n), 10) for n in (0, 20, 39)
    )


def test_s12_a_queue_far_longer_than_the_pool_costs_no_throughput(tiny_llama: Any) -> None:
    def steps_a_request(concurrent: int, num_gpu_blocks: int) -> float:
        llm = LLM(tiny_llama.directory, block_size=4, num_gpu_blocks=num_gpu_blocks, max_num_seqs=256)
        prompts = [prompt_of(12, salt) for salt in range(concurrent)]
        outputs = llm.generate(prompts, greedy(6))
        assert all(len(output.token_ids) == 6 for output in outputs)
        return llm.engine.core.num_steps / concurrent

    moderate, flood = steps_a_request(24, 20), steps_a_request(96, 20)
    unpressured = steps_a_request(96, 1000)
    assert unpressured <= flood <= 1.15 * moderate
