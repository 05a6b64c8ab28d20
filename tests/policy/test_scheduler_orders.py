"""Exact orders and chunk sizes: who runs, who is admitted, in which order, with how many tokens."""

from __future__ import annotations

import pytest

from tinyllm.policy import Request, SchedulingPolicy, make_policy


def test_two_long_prompts_split_by_the_threshold_and_leave_the_budget_to_decodes(engine) -> None:
    world = engine(max_num_batched_tokens=512, long_prefill_token_threshold=128)
    world.add("a", 300, output=3)
    world.add("b", 300, output=3)
    assert [world.step().rows for _ in range(5)] == [
        [("a", 128), ("b", 128)],
        [("a", 128), ("b", 128)],
        [("a", 44), ("b", 44)],
        [("a", 1), ("b", 1)],
        [("a", 1), ("b", 1)],
    ]
    assert world.scheduler.num_unfinished == 0


def test_without_a_threshold_the_first_prompt_takes_the_whole_budget(engine) -> None:
    world = engine(max_num_batched_tokens=512)
    world.add("a", 800)
    world.add("b", 300)
    assert [world.step().rows for _ in range(3)] == [
        [("a", 512)],
        [("a", 288), ("b", 224)],
        [("b", 76)],
    ]


def test_a_threshold_over_the_budget_changes_nothing(engine) -> None:
    world = engine(max_num_batched_tokens=512, long_prefill_token_threshold=4_096)
    world.add("a", 800)
    assert [world.step().rows for _ in range(2)] == [[("a", 512)], [("a", 288)]]


def test_running_requests_come_before_waiting_ones_even_when_they_arrived_later(engine) -> None:
    world = engine("priority", max_num_batched_tokens=64)
    world.add("patient", 40, output=5, priority=9)
    world.step()
    world.add("urgent", 200, output=5, priority=0)
    assert world.step().rows == [("patient", 1), ("urgent", 63)]
    # Among the running, the more urgent one is first.
    assert world.step().rows == [("urgent", 64)]


def test_a_chunk_that_stops_short_samples_nothing(engine) -> None:
    world = engine(max_num_batched_tokens=50)
    world.add("a", 120, output=2)
    sampled = []
    for _ in range(3):
        batch = world.schedule()
        sampled.append((batch.samples, batch.num_sampled))
        world.finish(batch)
    assert sampled == [([False], 0), ([False], 0), ([True], 1)]


def test_the_sums_of_a_batch_are_those_of_its_rows(engine) -> None:
    world = engine(max_num_batched_tokens=64)
    world.add("a", 10, output=9)
    world.step()
    world.add("b", 100, output=9)
    world.step()
    batch = world.schedule()
    # a decodes its 12th token, b computes its tokens 64 … 100 on top of 63.
    assert list(zip([r.request_id for r in batch.requests], batch.num_scheduled_tokens, strict=True)) == [
        ("a", 1),
        ("b", 37),
    ]
    assert (batch.decode_seqs, batch.decode_context_tokens) == (1, 12)
    assert (batch.prefill_seqs, batch.prefill_tokens, batch.prefill_rows) == (1, 37, [1])
    assert batch.prefill_attention_pairs == sum(range(64, 101))
    assert batch.prefill_context_tokens == 100
    assert (batch.num_tokens, batch.num_sampled) == (38, 2)


def test_waiting_requests_of_one_stamp_are_admitted_as_they_were_submitted(engine) -> None:
    world = engine()
    for name in ("d", "b", "c", "a"):
        world.add(name, 16)
    assert world.step().admitted == ["d", "b", "c", "a"]


def test_seats_limit_admissions(engine) -> None:
    world = engine(max_num_seqs=2)
    for name in "abc":
        world.add(name, 16, output=2)
    assert world.step().admitted == ["a", "b"]
    assert world.step().admitted == []
    assert world.step().admitted == ["c"]


def test_the_head_of_the_queue_blocks_smaller_ones_behind_it(engine) -> None:
    world = engine(num_gpu_blocks=10, admission="full-prompt")
    world.add("running", 64, output=3)
    world.step()
    world.add("large", 112)
    world.add("small", 16)
    assert world.step().admitted == []


def test_with_overtake_a_smaller_request_passes_a_blocked_head(engine) -> None:
    class Overtaking(SchedulingPolicy):
        overtake = True

        def key(self, view: Request, now: int) -> tuple[int]:
            return (view.index,)

    world = engine(Overtaking(), num_gpu_blocks=10, admission="full-prompt")
    world.add("running", 64, output=3)
    world.step()
    world.add("large", 112)
    world.add("small", 16)
    world.add("also small", 16)
    assert world.step().admitted == ["small", "also small"]
    steps = world.run()
    assert steps[0].rows == [("running", 1)]
    assert steps[1].admitted == ["large"]


@pytest.mark.parametrize(
    ("admission", "blocks"), [("first-chunk", 2), ("full-prompt", 7), ("reserve-output", 10)]
)
def test_an_admission_rule_decides_for_how_many_tokens_blocks_are_taken(
    engine, admission: str, blocks: int
) -> None:
    world = engine(admission=admission, max_num_batched_tokens=32)
    # 100 tokens are 7 blocks; with 50 more, of which the last is never computed, 149 slots are 10.
    world.add("a", 100, output=50)
    world.schedule()
    assert 1_000 - world.free_blocks == blocks


def test_under_reserve_output_nothing_is_ever_preempted(engine) -> None:
    world = engine(num_gpu_blocks=12, admission="reserve-output", preemption="never")
    for i in range(6):
        world.add(f"r{i}", 30, output=40)
    steps = world.run()
    assert not any(step.preempted for step in steps)
    assert max(len(step.rows) for step in steps) == 2


def test_the_watermark_keeps_blocks_from_admissions_but_not_when_nothing_runs(engine) -> None:
    world = engine(num_gpu_blocks=10, watermark=0.3)
    world.add("a", 96, output=20)
    world.add("b", 32, output=2)
    assert world.step().admitted == ["a"]  # 6 of 10 blocks; b's 2 would leave 2, and 3 are to stay free
    whole = engine(num_gpu_blocks=10, watermark=0.3)
    whole.add("whole", 160)
    assert whole.step().admitted == ["whole"]


def test_without_chunked_prefill_a_prompt_waits_until_it_fits_one_step(engine) -> None:
    world = engine(max_num_batched_tokens=100, enable_chunked_prefill=False, long_prefill_token_threshold=8)
    world.add("a", 60, output=3)
    world.add("b", 60, output=3)
    world.add("c", 10, output=3)
    assert [world.step().rows for _ in range(2)] == [
        [("a", 60)],
        [("a", 1), ("b", 60), ("c", 10)],
    ]


def test_without_chunked_prefill_what_could_not_be_recomputed_in_one_step_is_refused(engine) -> None:
    world = engine(max_num_batched_tokens=100, enable_chunked_prefill=False)
    assert world.add("fits", 60, output=41) is None
    reason = world.add("too long", 60, output=42)
    assert reason is not None and "101 tokens" in reason and "max_num_batched_tokens is 100" in reason


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "complaint"),
    [
        (0, 5, "the prompt is empty"),
        (5, 0, "max_tokens is 0"),
        (64, 5, "leaves no room for output in max_model_len 64"),
    ],
)
def test_what_can_never_be_served_is_refused_with_its_reason(
    engine, prompt: int, max_tokens: int, complaint: str
) -> None:
    world = engine(max_model_len=64)
    reason = world.add("a", prompt, output=1, max_tokens=max_tokens)
    assert reason is not None and complaint in reason
    assert world.scheduler.num_unfinished == 0
    assert world.step().rows == []


def test_a_request_ends_at_the_end_of_the_context(engine) -> None:
    world = engine(max_model_len=64)
    world.add("a", 60, output=1_000)
    world.run()
    assert world.requests["a"].num_output_tokens == 4
    assert world.requests["a"].finish_reason.value == "length"


def test_a_step_without_budget_for_all_serves_the_first_by_key_and_the_others_next(engine) -> None:
    world = engine(max_num_batched_tokens=2, max_num_seqs=3)
    for name in "abc":
        world.add(name, 1, output=3)
    rows = [[name for name, _ in world.step().rows] for _ in range(5)]
    assert rows == [["a", "b"], ["a", "b"], ["a", "b"], ["c"], ["c"]]


def test_a_newcomer_whose_key_is_not_the_largest_finds_its_place_in_the_next_step(engine) -> None:
    world = engine(make_policy("priority", {"preemptive": False}))
    for name, priority in (("a", 1), ("b", 3), ("c", 0), ("d", 2)):
        world.add(name, 4, output=9, priority=priority)
        world.step()
    assert [name for name, _ in world.step().rows] == ["c", "a", "d", "b"]
