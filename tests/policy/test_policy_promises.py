"""Promises let the scheduler be lazy. That no built-in breaks them is for tests/conformance; this is the queue."""

from __future__ import annotations

import pytest

from tinyllm.conformance.checks import Asked
from tinyllm.policy import POLICIES, make_policy


@pytest.mark.parametrize("name", list(POLICIES))
def test_a_waiting_queue_of_either_kind_gives_the_best_first(engine, name: str) -> None:
    worlds = [engine(policy, max_num_seqs=2) for policy in (name, Asked(make_policy(name)))]
    for world in worlds:
        for i, (prompt, priority, tenant) in enumerate([(9, 2, "x"), (5, 1, "y"), (7, 0, "x"), (3, 2, "y")]):
            world.add(f"r{i}", prompt, output=2, priority=priority, tenant=tenant)
    lazy, asked = (world.scheduler.waiting for world in worlds)
    assert [r.request_id for r in lazy.ordered(0)] == [r.request_id for r in asked.ordered(0)]
    assert lazy.best(0).request_id == lazy.ordered(0)[0].request_id
    assert asked.best(0).request_id == lazy.best(0).request_id
    assert worlds[0].run() == worlds[1].run()
