"""Rules that vLLM has and that are options here: each by hand, and all of them together in random worlds."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tinyllm.errors import InputError
from tinyllm.policy import SchedulerConfig, make_policy

RULES = {"cap_lone_prefill": False, "register_blocks": "scheduled", "admission": "prompt-fits"}


def test_a_lone_prompt_may_take_the_whole_budget_and_is_capped_as_soon_as_another_waits(engine) -> None:
    world = engine(
        cap_lone_prefill=False, long_prefill_token_threshold=8, max_num_batched_tokens=20, max_num_seqs=1
    )
    world.add("long", 60)
    assert world.step().rows == [("long", 20)]
    world.add("other", 4)
    assert world.step().rows == [("long", 8)]


def test_a_prompt_that_fits_takes_the_blocks_of_its_first_chunk_only(engine) -> None:
    world = engine(num_gpu_blocks=4, max_num_batched_tokens=16, admission="prompt-fits")
    world.add("first", 64)
    world.step()
    assert world.free_blocks == 3


def test_a_prompt_without_room_for_all_of_it_waits_although_its_first_chunk_would_fit(engine) -> None:
    for admission, rows in (("first-chunk", [("first", 4), ("second", 12)]), ("prompt-fits", [("first", 4)])):
        world = engine(num_gpu_blocks=4, max_num_batched_tokens=16, admission=admission)
        world.add("first", 20, output=10)
        world.step()
        world.add("second", 48)
        assert world.step().rows == rows


def test_prompts_admitted_in_one_step_share_blocks_that_are_registered_when_scheduled(engine) -> None:
    for when, rows in (("computed", [("a", 33), ("b", 33)]), ("scheduled", [("a", 33), ("b", 1)])):
        world = engine(enable_prefix_caching=True, register_blocks=when)
        for name in "ab":
            world.add(name, 33, block_hashes=["x", "y"])
        assert world.step().rows == rows


def test_what_is_taken_back_frees_its_blocks_and_its_share_of_the_budget(engine) -> None:
    world = engine(
        make_policy("priority", {"preemptive": False}), num_gpu_blocks=3, block_size=16, batching="take-back"
    )
    world.add("low", 20, output=10, priority=9)
    world.step()
    world.add("high", 16, output=10, priority=0)
    assert world.step().rows == [("low", 1), ("high", 16)]
    step = world.step()
    # In the order of admission low comes first and gets its token; then high lacks a block.
    assert (step.rows, step.preempted) == ([("high", 1)], ["low"])
    assert world.requests["low"].num_computed_tokens == 0
    world.run()
    assert world.requests["low"].num_output_tokens == 10


def test_the_first_resident_that_gives_way_itself_leaves_no_step_empty(engine) -> None:
    world = engine(make_policy("priority", {"preemptive": False}), num_gpu_blocks=3, batching="take-back")
    world.add("low", 31, output=10, priority=9)
    world.step()
    world.add("high", 16, output=10, priority=0)
    world.step()
    step = world.step()
    assert (step.rows, step.preempted) == ([("high", 1)], ["low"])


@pytest.mark.parametrize("batching", ["mixed", "take-back"])
@pytest.mark.parametrize("policy", ["fcfs", "priority", "srpt", "mlfq"])
def test_random_worlds_keep_their_limits_and_end_under_these_rules(policy: str, batching: str, world) -> None:
    taken_back = 0
    for seed in range(12):
        drawn = world.draw(Random(seed))
        kept = ("block_size", "num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
        shared = ("long_prefill_token_threshold", "enable_prefix_caching", "watermark")
        config: dict[str, Any] = {name: drawn.config[name] for name in kept + shared}
        stepper = drawn._replace(config=config | RULES | {"batching": batching}).run(policy)
        assert stepper.scheduler.num_unfinished == 0
        assert stepper.free_blocks == config["num_gpu_blocks"]
        taken_back += sum(len(step.preempted) for step in stepper.steps)
    assert taken_back > 10


def test_taking_back_excludes_limits_of_one_phase() -> None:
    with pytest.raises(InputError, match="--batching take-back excludes --max-num-decode-tokens"):
        SchedulerConfig(batching="take-back", max_num_decode_tokens=1)
