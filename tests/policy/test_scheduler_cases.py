"""Faults that users of other engines reported, as inputs here. The numbers are those of our list of such cases."""

from __future__ import annotations

import pytest


def test_s1_a_prompt_that_fills_the_pool_and_wants_more_output_is_refused_when_added(engine) -> None:
    world = engine(num_gpu_blocks=2)
    reason = world.add("a", 32, output=2)
    assert reason == "needs 3 KV blocks for 33 tokens, the pool has 2"
    assert world.add("b", 32, output=1) is None
    assert world.run()[-1].finished == ["b"]


def test_s2_a_request_over_the_pool_is_refused_alone_and_the_next_one_runs(engine) -> None:
    world = engine(num_gpu_blocks=4)
    assert world.add("huge", 100, output=10) is not None
    assert world.add("short", 10, output=3) is None
    steps = world.run()
    assert [name for step in steps for name in step.finished] == ["short"]


def test_s3_several_victims_in_one_step_and_every_other_request_is_visited_once(engine) -> None:
    world = engine(num_gpu_blocks=6)
    for name in "abcdef":
        world.add(name, 16, output=30)
    world.step()
    step = world.step()
    assert step.rows == [("a", 1), ("b", 1), ("c", 1)]
    assert step.preempted == ["f", "e", "d"]


def test_s4_what_this_step_has_scheduled_is_never_a_victim(engine) -> None:
    world = engine("priority", num_gpu_blocks=5)
    world.add("low", 28, output=10, priority=9)
    world.add("high", 16, output=10, priority=0)
    world.add("mid", 16, output=10, priority=5)
    assert [name for name, _ in world.step().rows] == ["high", "mid", "low"]  # 1 + 1 + 2 blocks
    step = world.step()
    # By key, high takes the free block, mid the low one's, which comes last and is not scheduled yet.
    assert (step.rows, step.preempted) == ([("high", 1), ("mid", 1)], ["low"])
    world.run()
    assert world.requests["low"].num_output_tokens == 10


def test_s4_an_urgent_request_admitted_later_still_comes_before_the_one_it_preempts(engine) -> None:
    world = engine("priority", num_gpu_blocks=3)
    world.add("low", 31, output=10, priority=9)
    world.step()  # 2 blocks, with room for one token more
    world.add("high", 16, output=10, priority=0)
    assert world.step().rows == [("low", 1), ("high", 16)]
    # Both need a block now: high, admitted later, is first by key, so low has not been scheduled and gives way.
    step = world.step()
    assert (step.rows, step.preempted) == ([("high", 1)], ["low"])


def test_s5_only_the_tokens_beyond_the_cached_prefix_are_scheduled(engine) -> None:
    world = engine(enable_prefix_caching=True)
    shared = [f"shared-{i}" for i in range(16)]
    world.add("first", 256, block_hashes=shared)
    world.run()
    world.add("second", 465, block_hashes=[*shared, *(f"own-{i}" for i in range(13))])
    assert world.step().rows == [("second", 209)]
    assert world.requests["second"].num_cached_tokens == 256


def test_s6_the_same_prompt_twice_computes_at_least_one_token_and_outputs_as_much(engine) -> None:
    world = engine(enable_prefix_caching=True)
    hashes = ["x", "y"]
    rows = []
    for name in ("first", "second"):
        world.add(name, 32, output=3, block_hashes=hashes)
        rows.append([count for step in world.run() for _, count in step.rows])
    assert rows == [[32, 1, 1], [16, 1, 1]]


def test_s7_a_request_aborted_after_its_first_chunk_and_submitted_again_runs_like_a_fresh_one(engine) -> None:
    world = engine(max_num_batched_tokens=64)
    world.add("a", 150, output=3)
    assert world.step().rows == [("a", 64)]
    world.abort("a")
    assert (world.free_blocks, world.scheduler.num_unfinished) == (1_000, 0)
    assert world.add("a", 150, output=3) is None
    fresh = engine(max_num_batched_tokens=64)
    fresh.add("a", 150, output=3)
    assert world.run() == fresh.run()
    assert world.requests["a"].num_recomputed_tokens == 0


def test_s8_a_token_fits_into_a_half_full_block_when_no_block_is_free(engine) -> None:
    world = engine(num_gpu_blocks=2)
    world.add("a", 24, output=9)
    world.step()
    assert world.free_blocks == 0
    steps = world.run()
    assert all(step.rows == [("a", 1)] and not step.preempted for step in steps)


def test_s9_a_resumed_request_keeps_its_place_among_new_ones_and_its_arrival(engine) -> None:
    world = engine(num_gpu_blocks=4)
    for name in "abc":
        world.add(name, 16, output=16)
    world.step()
    assert world.step().preempted == ["c"]
    arrival, admitted_index = world.requests["c"].arrival, world.requests["c"].admitted_index
    world.add("new", 16, output=16)
    steps = world.run()
    assert [name for step in steps for name in step.admitted] == ["c", "new"]
    assert world.requests["c"].arrival == arrival
    assert world.requests["c"].admitted_index > admitted_index


def test_s10_a_second_request_with_the_same_id_is_refused_and_the_first_one_goes_on(engine) -> None:
    world = engine()
    world.add("a", 16, output=5)
    world.step()
    first = world.requests["a"]
    assert world.add("a", 700, output=9) == "a request with the id 'a' is not finished yet"
    world.run()
    assert (first.num_output_tokens, first.num_prompt_tokens) == (5, 16)
    assert world.add("a", 16, output=1) is None


@pytest.mark.parametrize(
    ("policy", "admission"),
    [
        ("fcfs", "first-chunk"),
        ("fcfs", "full-prompt"),
        ("fcfs", "reserve-output"),
        ("priority", "first-chunk"),
        ("srpt", "first-chunk"),
        ("vtc", "first-chunk"),
    ],
)
def test_s11_two_hundred_requests_against_a_small_pool_all_finish_with_bounded_preemptions(
    engine, policy: str, admission: str
) -> None:
    # 200 requests of 512 prompt and 256 output tokens that come at once; room for 20 of them in full.
    world = engine(policy, num_gpu_blocks=960, admission=admission)
    for i in range(200):
        assert world.add(f"r{i}", 512, output=256, predicted_output_tokens=256, priority=i % 3) is None
    world.run()
    requests = world.requests.values()
    assert all(request.num_output_tokens == 256 for request in requests)
    preemptions = sum(request.num_preemptions for request in requests)
    assert preemptions <= 2 * len(world.requests)
    if admission == "reserve-output":
        assert preemptions == 0


def test_s11_what_can_never_fit_is_refused_while_the_others_finish(engine) -> None:
    world = engine(num_gpu_blocks=48)
    reasons = [world.add(f"r{i}", 512 + 16 * (i % 2), output=256) for i in range(10)]
    assert [reason is None for reason in reasons] == [True, False] * 5
    world.run()
    assert all(request.is_finished for request in world.requests.values())
