"""What a step mixes: batching modes, caps of each phase, partial prefills. Exact schedules, worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tinyllm.policy import Request, SchedulingPolicy

Rows = list[tuple[str, int]]


def served(engine: Any, requests: list[tuple[str, int, int]], **config: Any) -> list[Rows]:
    """The rows of each step when these requests (name, prompt, output) are all there at the start."""
    stepper = engine(
        "fcfs", **{"block_size": 4, "num_gpu_blocks": 100, "max_num_batched_tokens": 10} | config
    )
    for name, prompt, output in requests:
        assert stepper.add(name, prompt, output) is None
    return [step.rows for step in stepper.run()]


THREE = [("a", 6, 3), ("b", 6, 2), ("c", 3, 1)]


def test_mixed_batches_prefill_beside_decodes(engine) -> None:
    assert served(engine, THREE) == [
        [("a", 6), ("b", 4)],
        [("a", 1), ("b", 2), ("c", 3)],
        [("a", 1), ("b", 1)],
    ]


def test_prefill_first_decodes_only_when_nothing_is_left_to_prefill(engine) -> None:
    assert served(engine, THREE, batching="prefill-first") == [
        [("a", 6), ("b", 4)],
        [("b", 2), ("c", 3)],
        [("a", 1), ("b", 1)],
        [("a", 1)],
    ]


def test_prefill_first_lets_a_late_arrival_stall_the_decodes(engine) -> None:
    stepper = engine("fcfs", batching="prefill-first", max_num_batched_tokens=10)
    stepper.add("a", 4, 3)
    steps = [stepper.step().rows]
    stepper.add("b", 12, 1)
    steps += [step.rows for step in stepper.run()]
    assert steps == [[("a", 4)], [("b", 10)], [("b", 2)], [("a", 1)], [("a", 1)]]


def test_prefill_first_decodes_while_the_waiting_head_has_no_seat(engine) -> None:
    rows = served(engine, THREE, batching="prefill-first", max_num_seqs=2, max_num_batched_tokens=20)
    assert rows == [[("a", 6), ("b", 6)], [("a", 1), ("b", 1)], [("c", 3)], [("a", 1)]]


def test_a_static_batch_takes_nobody_in_until_all_of_it_has_ended(engine) -> None:
    rows = served(engine, [("a", 2, 1), ("b", 2, 3), ("c", 2, 1)], batching="static", max_num_seqs=2)
    assert rows == [[("a", 2), ("b", 2)], [("b", 1)], [("b", 1)], [("c", 2)]]


def test_a_static_batch_is_gathered_over_several_steps_where_the_budget_does_not_reach(engine) -> None:
    rows = served(engine, [("a", 8, 2), ("b", 8, 2), ("c", 8, 1)], batching="static")
    assert rows == [[("a", 8), ("b", 2)], [("a", 1), ("b", 6), ("c", 3)], [("b", 1), ("c", 5)]]


def test_a_static_batch_is_closed_to_whom_arrives_after_the_queue_was_empty(engine) -> None:
    stepper = engine("fcfs", batching="static")
    stepper.add("a", 4, 3)
    steps = [stepper.step().rows]
    stepper.add("b", 4, 1)
    steps += [step.rows for step in stepper.run()]
    assert steps == [[("a", 4)], [("a", 1)], [("a", 1)], [("b", 4)]]


def test_a_cap_on_prefill_tokens_leaves_the_rest_of_the_budget_to_decodes(engine) -> None:
    rows = served(engine, [("a", 4, 3), ("b", 6, 1)], max_num_prefill_tokens=4)
    assert rows == [[("a", 4)], [("a", 1), ("b", 4)], [("a", 1), ("b", 2)]]


def test_a_cap_on_decode_tokens_serves_the_first_by_key(engine) -> None:
    rows = served(engine, [("a", 2, 2), ("b", 2, 2), ("c", 9, 1)], max_num_decode_tokens=1)
    # c's chunk lies behind the capped b and gets its tokens all the same.
    assert rows == [[("a", 2), ("b", 2), ("c", 6)], [("a", 1), ("c", 3)], [("b", 1)]]


def test_no_further_prompt_is_begun_while_as_many_as_allowed_are_unfinished(engine) -> None:
    long_prompts = [("a", 9, 1), ("b", 9, 1), ("c", 2, 1)]
    limits = {"long_prefill_token_threshold": 4}
    assert served(engine, long_prompts, **limits)[0] == [("a", 4), ("b", 4), ("c", 2)]
    assert served(engine, long_prompts, **limits, max_num_partial_prefills=1) == [
        [("a", 4)],
        [("a", 4)],
        [("a", 1), ("b", 4), ("c", 2)],  # c ends at once and leaves nothing unfinished
        [("b", 4)],
        [("b", 1)],
    ]


@pytest.mark.parametrize("batching", ["mixed", "prefill-first", "static"])
def test_under_memory_pressure_every_mode_ends_all_requests(engine, batching: str) -> None:
    requests = [(f"r{i}", 3 + 5 * i % 11, 1 + 7 * i % 13) for i in range(12)]
    stepper = engine("fcfs", batching=batching, block_size=2, num_gpu_blocks=14, max_num_batched_tokens=6)
    for name, prompt, output in requests:
        assert stepper.add(name, prompt, output) is None
    stepper.run()
    assert [stepper.requests[name].num_output_tokens for name, _, _ in requests] == [
        o for _, _, o in requests
    ]


def test_nobody_is_displaced_for_a_prompt_that_may_not_be_begun(engine) -> None:
    """Both residents are held, the first with an unfinished prompt. The other's seat alone is of no use to `c`."""

    class Holds(SchedulingPolicy):
        preemptive = True

        def key(self, view: Request, now: int) -> tuple[int] | None:
            return None if view.request_id != "c" and 2_000_000 <= now < 4_000_000 else (view.priority,)

    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 4, "max_num_partial_prefills": 1}
    stepper = engine(Holds(), block_size=4, num_gpu_blocks=100, **limits)
    stepper.add("unfinished", 9, 1, priority=1)
    stepper.add("decoding", 2, 9, priority=0)
    assert stepper.step().rows == [("decoding", 2), ("unfinished", 2)]
    assert stepper.step().rows == [("decoding", 1), ("unfinished", 3)]
    stepper.add("c", 9, 1, priority=0)
    step = stepper.step()
    assert (step.rows, step.preempted) == ([("c", 4)], ["decoding", "unfinished"])
    stepper.run()
