"""What policies promise so that the scheduler may be lazy: laziness must not change a single decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyllm.policy import POLICIES, Request, RequestState, SchedulingPolicy, make_policy

RANDOM = st.randoms(use_true_random=False)
PROMISING = [name for name, policy in POLICIES.items() if policy.stable_waiting]


def without_promises(name: str) -> SchedulingPolicy:
    """The same policy, asked for every key in every step."""

    class Lazyless(POLICIES[name]):  # type: ignore[misc]
        stable_waiting = False
        waiting_group = SchedulingPolicy.waiting_group

        def decode_horizon(self, running: Sequence[Request], waiting: int, now: int) -> int:
            return 1

    return Lazyless()


@settings(max_examples=60)
@given(rng=RANDOM, name=st.sampled_from(list(POLICIES)))
def test_a_policy_asked_anew_in_every_step_takes_the_same_decisions(world, rng, name: str) -> None:
    drawn = world.draw(rng, may_preempt=make_policy(name).preemptive)
    assert drawn.run(name).steps == drawn.run(without_promises(name)).steps


@settings(max_examples=60)
@given(rng=RANDOM, name=st.sampled_from(list(POLICIES)))
def test_the_running_order_kept_over_steps_is_the_order_of_the_keys_asked_afresh(world, rng, name) -> None:
    def compare(engine: Any) -> None:
        schedule = engine.schedule

        def schedule_and_compare() -> Any:
            keys = {
                r.request_id: (*engine.policy.key(r, engine.now), r.arrival, r.index) for r in residents()
            }
            batch = schedule()
            rows = [r.request_id for r in batch.requests if r not in batch.admitted] if batch else []
            assert rows == sorted(rows, key=keys.__getitem__)
            return batch

        def residents() -> list[Request]:
            return list(engine.scheduler.running)

        engine.schedule = schedule_and_compare

    started = False

    def once(engine: Any) -> None:
        nonlocal started
        if not started:
            compare(engine)
        started = True

    world.draw(rng, may_preempt=make_policy(name).preemptive).run(name, once)


@settings(max_examples=60)
@given(rng=RANDOM, name=st.sampled_from(PROMISING))
def test_a_stable_key_does_not_change_while_its_request_waits(world, rng, name: str) -> None:
    known: dict[tuple[str, int], Any] = {}

    def compare(engine: Any) -> None:
        for request in engine.scheduler.waiting.requests():
            assert request.state in (RequestState.WAITING, RequestState.PREEMPTED)
            wait = (request.request_id, request.num_preemptions)
            key = engine.policy.key(request, engine.now)
            assert known.setdefault(wait, key) == key

    world.draw(rng, may_preempt=make_policy(name).preemptive).run(name, compare)


@pytest.mark.parametrize("name", list(POLICIES))
def test_a_waiting_queue_of_either_kind_gives_the_best_first(engine, name: str) -> None:
    worlds = [engine(policy, max_num_seqs=2) for policy in (name, without_promises(name))]
    for world in worlds:
        for i, (prompt, priority, tenant) in enumerate([(9, 2, "x"), (5, 1, "y"), (7, 0, "x"), (3, 2, "y")]):
            world.add(f"r{i}", prompt, output=2, priority=priority, tenant=tenant)
    lazy, asked = (world.scheduler.waiting for world in worlds)
    assert [r.request_id for r in lazy.ordered(0)] == [r.request_id for r in asked.ordered(0)]
    assert lazy.best(0).request_id == lazy.ordered(0)[0].request_id
    assert asked.best(0).request_id == lazy.best(0).request_id
    assert worlds[0].run() == worlds[1].run()
