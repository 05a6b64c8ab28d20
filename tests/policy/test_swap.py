"""Swapping: a victim's blocks go to host memory and come back; where there is no room they are computed anew."""

from __future__ import annotations

from typing import Any

from tinyllm.policy import Request
from tinyllm.policy.swap import SwappingKVManager

SWAP: dict[str, Any] = {
    "preemption": "swap",
    "block_size": 1,
    "num_gpu_blocks": 8,
    "max_num_batched_tokens": 8,
}


def two_that_outgrow_the_pool(engine: Any, **config: Any) -> tuple[Any, list[tuple[Any, int, int]]]:
    """Serve a (prompt 3, output 4) and b (prompt 3, output 3) with 8 slots; the rows, and the blocks that each
    step copied out and in."""
    stepper = engine("fcfs", **SWAP | config)
    stepper.add("a", 3, 4)
    stepper.add("b", 3, 3)
    steps = []
    while stepper.scheduler.num_unfinished:
        batch = stepper.schedule()
        rows = dict(zip([r.request_id for r in batch.requests], batch.num_scheduled_tokens, strict=True))
        steps.append((rows, batch.swapped_out_blocks, batch.swapped_in_blocks))
        stepper.finish(batch)
    return stepper, steps


def test_a_victim_goes_on_where_it_was_and_computes_nothing_again(engine) -> None:
    stepper, steps = two_that_outgrow_the_pool(engine, num_cpu_blocks=4)
    assert steps == [
        ({"a": 3, "b": 3}, 0, 0),
        ({"a": 1, "b": 1}, 0, 0),
        ({"a": 1}, 4, 0),  # b's four computed tokens leave
        ({"a": 1}, 0, 0),
        ({"b": 1}, 0, 4),
    ]
    victim = stepper.requests["b"]
    assert (victim.num_preemptions, victim.num_recomputed_tokens, victim.num_output_tokens) == (1, 0, 3)


def test_where_the_host_pool_is_too_small_the_victim_is_computed_anew(engine) -> None:
    stepper, steps = two_that_outgrow_the_pool(engine, num_cpu_blocks=3)
    assert steps[2] == ({"a": 1}, 0, 0)
    assert steps[-1] == ({"b": 5}, 0, 0)
    assert stepper.requests["b"].num_recomputed_tokens == 4


def test_an_aborted_victim_gives_its_host_blocks_back(engine) -> None:
    stepper = engine("fcfs", **SWAP, num_cpu_blocks=4)
    stepper.add("a", 3, 4)
    stepper.add("b", 3, 3)
    for _ in range(3):
        stepper.step()
    assert stepper.scheduler.kv.num_free_cpu_blocks == 0
    stepper.abort("b")
    assert stepper.scheduler.kv.num_free_cpu_blocks == 4


def test_a_victim_without_a_computed_token_needs_no_host_block() -> None:
    kv = SwappingKVManager(8, 2, num_cpu_blocks=1)
    request = Request("r", 4, 1)
    assert kv.admit(request, [], 4, waive_watermark=True)
    assert not kv.preempt(request)
    assert (kv.num_free_cpu_blocks, kv.pool.num_free) == (1, 8)


def test_the_integrity_check_finds_host_blocks_that_do_not_add_up() -> None:
    kv = SwappingKVManager(8, 2, num_cpu_blocks=5)
    request = Request("r", 4, 1)
    kv.admit(request, [], 4, waive_watermark=True)
    request.num_computed_tokens = 3
    assert kv.preempt(request) and request.num_cpu_blocks == 2
    assert kv.check_integrity([], [request]) == []
    kv.num_free_cpu_blocks += 1
    assert kv.check_integrity([], [request]) == ["host blocks held and free do not add up to the host pool"]
    request.num_cpu_blocks = 1
    assert "r: host blocks and computed tokens disagree" in kv.check_integrity([], [request])
