"""The whole scheduler in random worlds: whatever the policy, the limits hold and every request ends."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyllm.policy import POLICIES, Request, ScheduledBatch, SchedulingPolicy, make_policy

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


def check_batch(world: Any, batch: ScheduledBatch) -> None:
    """What must be true of every batch, computed afresh from its rows."""
    config = world.config
    names = [request.request_id for request in batch.requests]
    counts = batch.num_scheduled_tokens
    assert len(set(names)) == len(names)
    assert min(counts) >= 1
    assert sum(counts) == batch.num_tokens <= config.max_num_batched_tokens
    threshold = config.long_prefill_token_threshold
    if config.enable_chunked_prefill and threshold:
        assert max(counts) <= threshold
    if not config.enable_chunked_prefill:
        assert batch.partial_rows == []
    taken_back = {request.request_id for request in batch.preempted} & set(names)
    # Only a victim of a waiting request may be in the batch: it found room again and was resumed at once.
    assert taken_back <= {request.request_id for request in batch.admitted}
    assert not taken_back or world.policy.preemptive

    rows = list(zip(batch.requests, counts, strict=True))
    assert all(r.num_computed_tokens + count <= min(r.num_slots, r.num_tokens) for r, count in rows)
    partial = [i for i, (r, count) in enumerate(rows) if r.num_computed_tokens + count < r.num_tokens]
    prefill = [i for i, (r, _) in enumerate(rows) if not r.is_decoding]
    decode = [(r, count) for r, count in rows if r.is_decoding]
    assert batch.partial_rows == partial
    assert batch.num_sampled == len(rows) - len(partial)
    assert batch.prefill_rows == prefill
    assert (batch.prefill_seqs, batch.decode_seqs) == (len(prefill), len(decode))
    assert batch.prefill_tokens == sum(counts[i] for i in prefill)
    assert all(count == 1 for _, count in decode)
    assert batch.decode_context_tokens == sum(r.num_computed_tokens + 1 for r, _ in decode)
    ends = [(rows[i][0].num_computed_tokens, counts[i]) for i in prefill]
    assert batch.prefill_context_tokens == sum(x + p for x, p in ends)
    assert batch.prefill_attention_pairs == sum(sum(range(x + 1, x + p + 1)) for x, p in ends)


def checked(world: Any, policy: str | SchedulingPolicy) -> Any:
    """Run a world, checking each batch, and let everything end."""
    engine = world.run(policy, watch)
    if isinstance(engine.policy, Whimsical):
        engine.policy.holds = False
    engine.run(most_steps=20_000)
    pool = engine.scheduler.kv.pool
    assert all(request.is_finished for request in engine.requests.values())
    assert (pool.num_used, pool.num_free) == (0, pool.num_blocks)
    assert sorted(pool.free_order()) == list(range(pool.num_blocks))
    return engine


def watch(engine: Any) -> None:
    """Let the engine check each of its batches from now on."""
    if getattr(engine, "watched", False):
        return
    engine.watched, schedule = True, engine.schedule

    def schedule_and_check() -> ScheduledBatch | None:
        batch = schedule()
        if batch is not None:
            check_batch(engine, batch)
        return batch

    engine.schedule = schedule_and_check


def may_preempt(policy: SchedulingPolicy) -> bool:
    return policy.preemptive


@settings(max_examples=100)
@given(rng=RANDOM, name=st.sampled_from(BUILT_IN))
def test_under_every_built_in_policy_all_limits_hold_and_every_request_ends(world, rng, name) -> None:
    policy = make_policy(name)
    checked(world.draw(rng, may_preempt=may_preempt(policy)), policy)


@settings(max_examples=100)
@given(rng=RANDOM, holds=st.booleans())
def test_under_any_order_with_any_switches_all_limits_hold_and_every_request_ends(world, rng, holds) -> None:
    policy = Whimsical(rng, holds=holds)
    checked(world.draw(rng, may_preempt=may_preempt(policy)), policy)


class Erratic(SchedulingPolicy):
    """Another order at each step: it may never get anything done, but it must break nothing."""

    preemptive = True

    def key(self, view: Request, now: int) -> tuple[int]:
        return (Random(f"{view.index}/{now}").randint(0, 3),)


@settings(max_examples=40)
@given(rng=RANDOM)
def test_a_policy_that_changes_its_mind_at_each_step_breaks_no_limit(world, rng) -> None:
    engine = world.draw(rng).run(Erratic(), watch)
    for request in engine.scheduler.unfinished():
        engine.abort(request.request_id)
    assert engine.scheduler.kv.pool.num_used == 0


@settings(max_examples=60)
@given(rng=RANDOM, name=st.sampled_from(BUILT_IN))
def test_hidden_lengths_change_no_decision_before_the_first_finish_that_differs(world, rng, name) -> None:
    one = world.draw(rng, may_preempt=may_preempt(make_policy(name)))
    other = one.outputs_redrawn(rng)
    for mine, theirs in zip(one.run(name).steps, other.run(name).steps, strict=True):
        assert mine[:3] == theirs[:3]
        if mine.finished != theirs.finished:
            return


@settings(max_examples=30)
@given(rng=RANDOM, name=st.sampled_from(BUILT_IN))
def test_the_same_world_twice_takes_the_same_steps(world, rng, name) -> None:
    drawn = world.draw(rng, may_preempt=may_preempt(make_policy(name)))
    assert drawn.run(name).steps == drawn.run(name).steps


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_twenty_thousand_random_steps_break_nothing(world, name: str) -> None:
    rng, steps = Random(f"blast {name}"), 0
    while steps < 20_000:
        drawn = world.draw(rng, num_steps=500, may_preempt=may_preempt(make_policy(name)))
        steps += len(checked(drawn, name).steps)
