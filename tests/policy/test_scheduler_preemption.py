"""Who loses its blocks, when, and when it comes back."""

from __future__ import annotations

import pytest

from tinyllm.errors import InputError
from tinyllm.policy import FOREVER, Request, Scheduler, SchedulerConfig, SchedulingPolicy, make_policy


class Holding(SchedulingPolicy):
    """First come, first served, but for the requests that the test holds."""

    def __init__(self) -> None:
        self.held: set[str] = set()

    def key(self, view: Request, now: int) -> tuple[int] | None:
        return None if view.request_id in self.held else (view.index,)


def fill(world, *names: str, output: int = 40, **fields) -> None:
    """Admit one request of a full block under each name."""
    for name in names:
        world.add(name, 16, output=output, **fields)
    assert world.step().admitted == list(names)


def test_fcfs_preempts_the_request_admitted_last(engine) -> None:
    world = engine(num_gpu_blocks=4)
    fill(world, "a", "b", "c")
    # Each needs a second block: a gets the free one, b takes c's.
    step = world.step()
    assert (step.rows, step.preempted) == ([("a", 1), ("b", 1)], ["c"])


def test_the_request_itself_goes_when_all_after_it_are_gone(engine) -> None:
    world = engine(num_gpu_blocks=3)
    world.add("a", 17, output=10)
    world.add("b", 16, output=10)
    world.step()  # 2 + 1 blocks: now a has room for its next token and b has not
    step = world.step()
    assert (step.rows, step.preempted) == ([("a", 1)], ["b"])


def test_preempted_requests_return_in_front_of_new_ones_in_their_old_order(engine) -> None:
    world = engine(num_gpu_blocks=6)
    fill(world, "a", "b", "c", "d", output=32)
    world.add("new", 16, output=32)
    preempted, admitted = [], []
    for step in world.run():
        preempted += step.preempted
        admitted += step.admitted
    assert preempted[:2] == ["d", "c"]
    assert admitted[:2] == ["c", "d"]
    assert admitted[-1] == "new"


def test_a_step_that_preempts_admits_nobody(engine) -> None:
    world = engine(make_policy("priority", {"preemptive": False}), num_gpu_blocks=3)
    world.add("a", 16, output=10, priority=0)
    world.add("b", 20, output=10, priority=2)
    world.step()
    world.add("tiny", 1, priority=1)
    step = world.step()
    # One of the victim's two blocks is left, and stays so until the next step.
    assert (step.preempted, step.admitted, world.free_blocks) == (["b"], [], 1)
    assert world.step().admitted == ["tiny"]


def test_a_resumed_request_computes_prompt_and_outputs_again_and_keeps_its_outputs(engine) -> None:
    world = engine(num_gpu_blocks=4)
    fill(world, "a", "b", "c", output=16)
    step = world.step()
    victim = world.requests["c"]
    assert (victim.num_computed_tokens, victim.num_output_tokens, victim.block_ids) == (0, 1, [])
    while "c" not in step.admitted:
        step = world.step()
    assert ("c", 17) in step.rows
    world.run()
    assert (victim.num_output_tokens, victim.num_preemptions) == (16, 1)
    assert victim.num_recomputed_tokens == 16


def test_the_least_urgent_request_is_the_victim_whatever_the_order_of_admission(engine) -> None:
    world = engine("priority", num_gpu_blocks=4)
    for name, priority in (("late", 5), ("first", 1), ("mid", 3)):
        world.add(name, 16, output=30, priority=priority)
    world.step()
    step = world.step()
    assert (step.rows, step.preempted) == ([("first", 1), ("mid", 1)], ["late"])


def test_an_urgent_request_takes_the_seat_of_the_least_urgent_one(engine) -> None:
    world = engine("priority", max_num_seqs=3)
    for priority in (4, 6, 5):
        world.add(f"p{priority}", 16, output=30, priority=priority)
    world.step()
    world.add("urgent", 16, output=30, priority=0)
    step = world.step()
    assert (step.preempted, step.admitted) == (["p6"], ["urgent"])
    assert step.rows == [("p4", 1), ("p5", 1), ("urgent", 16)]


def test_only_as_many_victims_as_are_needed_lose_their_blocks(engine) -> None:
    world = engine("priority", num_gpu_blocks=10)
    for priority in (1, 2, 3, 4):
        world.add(f"p{priority}", 20, output=8, priority=priority)
    world.step()
    world.add("urgent", 60, output=4, priority=0)
    step = world.step()
    # The others have room for their next token. 2 free blocks and the 2 of p4 are just enough.
    assert (step.preempted, step.admitted) == (["p4"], ["urgent"])


def test_nobody_is_preempted_in_vain(engine) -> None:
    world = engine("priority", num_gpu_blocks=10, admission="full-prompt")
    world.add("equal", 96, output=8, priority=1)
    world.add("lesser", 30, output=2, priority=2)
    world.step()
    # Even with the lesser one's blocks the newcomer lacks some: those of its equal stay out of reach.
    world.add("newcomer", 100, output=8, priority=1)
    step = world.step()
    assert (step.preempted, step.admitted) == ([], [])
    assert world.running[:1] == ["equal"]


def test_equals_are_not_preempted(engine) -> None:
    world = engine("priority", max_num_seqs=1)
    world.add("a", 16, output=5, priority=1)
    world.step()
    world.add("b", 16, output=5, priority=1)
    assert world.step().preempted == []


def test_a_policy_that_is_not_preemptive_lets_the_urgent_one_wait(engine) -> None:
    world = engine(make_policy("priority", {"preemptive": False}), max_num_seqs=1)
    world.add("a", 16, output=5, priority=9)
    world.step()
    world.add("urgent", 16, output=5, priority=0)
    assert world.step().rows == [("a", 1)]


def test_blocks_that_two_victims_share_count_once_both_are_gone(engine) -> None:
    world = engine("priority", num_gpu_blocks=6, enable_prefix_caching=True, admission="full-prompt")
    prefix = ["x", "y", "z"]
    world.add("first", 60, output=3, priority=5, block_hashes=prefix)
    world.step()
    world.add("second", 60, output=3, priority=5, block_hashes=prefix)
    world.step()  # 3 shared blocks, one of its own each: 5 of 6 in use
    world.add("urgent", 96, output=1, priority=0)
    step = world.step()
    assert step.preempted == ["second", "first"]
    assert step.rows == [("urgent", 96)]


def test_blocks_that_the_newcomer_hits_are_no_gain_of_their_preemption(engine) -> None:
    world = engine("priority", num_gpu_blocks=6, enable_prefix_caching=True, admission="full-prompt")
    world.add("lesser", 60, output=3, priority=5, block_hashes=["x", "y", "z"])
    world.step()
    # 6 blocks needed, 3 of them hits that the lesser one owns; 2 free + its fourth block are just enough.
    world.add("urgent", 96, output=1, priority=0, block_hashes=["x", "y", "z", "u", "v", "w"])
    step = world.step()
    assert step.preempted == ["lesser"]
    assert step.rows == [("urgent", 48)]


def test_a_victim_whose_blocks_are_the_newcomer_s_hits_is_not_preempted_in_vain(engine) -> None:
    world = engine("priority", num_gpu_blocks=7, enable_prefix_caching=True, admission="full-prompt")
    world.add("equal", 10, output=5, priority=0)
    world.add("lesser", 60, output=3, priority=5, block_hashes=["x", "y", "z"])
    world.step()
    # 7 blocks needed, 3 of them hits; the 4 others are not there, though the lesser one holds 4 and 2 are free.
    world.add("newcomer", 112, output=1, priority=0, block_hashes=["x", "y", "z", "u", "v", "w"])
    assert world.step().preempted == []


def test_who_displaces_everybody_need_not_keep_to_the_watermark(engine) -> None:
    world = engine("priority", num_gpu_blocks=10, watermark=0.3, admission="full-prompt")
    world.add("lesser", 30, output=5, priority=5)
    world.step()
    world.add("urgent", 144, output=1, priority=0)
    step = world.step()
    assert (step.preempted, step.admitted) == (["lesser"], ["urgent"])


def test_preemption_never_with_a_preemptive_policy_is_refused_in_one_line() -> None:
    config = SchedulerConfig(admission="reserve-output", preemption="never")
    with pytest.raises(InputError, match="--preemption never excludes a preemptive policy") as error:
        Scheduler(config, make_policy("priority"))
    assert "\n" not in str(error.value)
    Scheduler(config, make_policy("priority", {"preemptive": False}))


def test_a_held_waiting_request_is_passed_over_without_blocking(engine) -> None:
    policy = Holding()
    policy.held.add("a")
    world = engine(policy)
    world.add("a", 16)
    world.add("b", 16)
    assert world.step().rows == [("b", 16)]
    assert world.step().rows == []
    policy.held.clear()
    assert world.step().rows == [("a", 16)]


def test_a_held_running_request_keeps_its_blocks_and_gets_no_tokens(engine) -> None:
    policy = Holding()
    world = engine(policy)
    fill(world, "a", "b")
    policy.held.add("a")
    assert world.step().rows == [("b", 1)]
    assert len(world.requests["a"].block_ids) == 1
    policy.held.clear()
    assert world.step().rows == [("a", 1), ("b", 1)]


def test_a_held_request_is_asked_again_in_every_step_whatever_horizon_the_policy_names(engine) -> None:
    class Farsighted(Holding):
        def decode_horizon(self, running, waiting, now) -> int:
            return FOREVER if self.held else 1

    policy = Farsighted()
    world = engine(policy)
    fill(world, "a", "b")
    policy.held.add("a")
    assert world.step().rows == [("b", 1)]
    policy.held.clear()
    assert world.step().rows == [("a", 1), ("b", 1)]


def test_a_held_running_request_is_the_first_victim_whatever_its_key_was(engine) -> None:
    policy = Holding()
    world = engine(policy, num_gpu_blocks=4)
    fill(world, "a", "b", "c")
    policy.held.add("a")
    step = world.step()
    assert (step.rows, step.preempted) == ([("b", 1), ("c", 1)], ["a"])


def test_a_request_that_waits_for_a_seat_may_take_a_held_one_s(engine) -> None:
    class PreemptiveHolding(Holding):
        preemptive = True

    policy = PreemptiveHolding()
    world = engine(policy, max_num_seqs=2)
    fill(world, "a", "b")
    world.add("c", 16, output=4)
    policy.held.add("a")
    step = world.step()
    assert (step.rows, step.preempted) == ([("b", 1), ("c", 16)], ["a"])
