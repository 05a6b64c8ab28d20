"""The scheduler in random worlds: under any policy the limits hold, and every request ends. The built-in ones
are also run by the conformance kit, in tests/conformance."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyllm.conformance import Stepper, World
from tinyllm.policy import POLICIES, Request, SchedulingPolicy, make_policy

BUILT_IN = list(POLICIES)
RANDOM = st.randoms(use_true_random=False)


class Whimsical(SchedulingPolicy):
    """Any order, fixed for each request, with any switches; holds a fifth of the requests for a step at a time."""

    def __init__(self, rng: Random, *, holds: bool) -> None:
        self.preemptive = rng.random() < 0.5
        self.overtake = rng.random() < 0.5
        self.holds = holds
        self.seed = rng.randint(0, 1_000_000)

    def key(self, view: Request, now: int) -> tuple[int] | None:
        if self.holds and (now // 1_000_000 + 3 * view.index + self.seed) % 5 == 0:
            return None
        return (Random(f"{self.seed}/{view.index}").randint(0, 3),)


def run_to_the_end(drawn: World, policy: str | SchedulingPolicy) -> Stepper:
    """Run a world, whose stepper checks each batch and the state after it, and let everything end."""
    stepper = drawn.run(policy)
    if isinstance(stepper.policy, Whimsical):
        stepper.policy.holds = False
    stepper.run(most_steps=20_000)
    pool = stepper.scheduler.kv.pool
    assert all(request.is_finished for request in stepper.requests.values())
    assert (pool.num_used, pool.num_free) == (0, pool.num_blocks)
    assert sorted(pool.free_order()) == list(range(pool.num_blocks))
    return stepper


@settings(max_examples=100)
@given(rng=RANDOM, holds=st.booleans())
def test_under_any_order_with_any_switches_all_limits_hold_and_every_request_ends(world, rng, holds) -> None:
    policy = Whimsical(rng, holds=holds)
    run_to_the_end(world.draw(rng, may_preempt=policy.preemptive), policy)


class Erratic(SchedulingPolicy):
    """Another order at each step: it may never get anything done, but it must break nothing."""

    preemptive = True

    def key(self, view: Request, now: int) -> tuple[int]:
        return (Random(f"{view.index}/{now}").randint(0, 3),)


@settings(max_examples=40)
@given(rng=RANDOM)
def test_a_policy_that_changes_its_mind_at_each_step_breaks_no_limit(world, rng) -> None:
    engine = world.draw(rng).run(Erratic(), most_steps=80)
    for request in engine.scheduler.unfinished():
        engine.abort(request.request_id)
    assert engine.scheduler.kv.pool.num_used == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_twenty_thousand_random_steps_break_nothing(world, name: str) -> None:
    rng, steps = Random(f"blast {name}"), 0
    while steps < 20_000:
        drawn = world.draw(rng, most_requests=400, may_preempt=make_policy(name).preemptive)
        steps += len(run_to_the_end(drawn, name).steps)
