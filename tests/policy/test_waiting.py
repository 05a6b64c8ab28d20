"""The three waiting queues give one order: what a policy promises may change the cost, never a choice."""

from __future__ import annotations

from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from tinyllm.policy import Key, Request, SchedulingPolicy
from tinyllm.policy.waiting import DynamicQueue, GroupedQueue, StableQueue, make_queue


class ByTenant(SchedulingPolicy):
    """A key a tenant, some of them held."""

    def __init__(self, keys: dict[str | None, int | None]) -> None:
        self.keys = keys

    def key(self, view: Request, now: int) -> Key | None:
        key = self.keys[view.tenant]
        return None if key is None else (key,)

    def waiting_group(self, view: Request) -> Hashable:
        return view.tenant


TENANTS = ("a", "b", "c")
keys_of_tenants = st.fixed_dictionaries({t: st.none() | st.integers(0, 2) for t in TENANTS})
arrivals = st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(0, 3)), max_size=12)


def _requests(rows: list[tuple[str, int]]) -> list[Request]:
    requests = [Request(f"r{i}", 1, 1, arrival, tenant=tenant) for i, (tenant, arrival) in enumerate(rows)]
    for index, request in enumerate(requests):
        request.index = index
    return requests


@given(arrivals, keys_of_tenants, keys_of_tenants, st.randoms(use_true_random=False))
def test_a_grouped_queue_chooses_as_a_dynamic_one_whatever_happens_to_the_keys(rows, before, after, random):  # type: ignore[no-untyped-def]
    policy = ByTenant(before)
    queues = (GroupedQueue(policy), DynamicQueue(policy))
    requests = _requests(rows)
    for request in requests:
        for queue in queues:
            queue.add(request, 0)
    for request in random.sample(requests, len(requests) // 2):
        for queue in queues:
            queue.remove(request)
    for keys in (before, after):
        policy.keys = keys
        grouped, dynamic = queues
        assert len(grouped) == len(dynamic)
        assert grouped.best(0) is dynamic.best(0)
        assert grouped.ordered(0) == dynamic.ordered(0)
        assert sorted(r.index for r in grouped.requests()) == sorted(r.index for r in dynamic.requests())


@given(arrivals, keys_of_tenants, keys_of_tenants)
def test_a_stable_queue_chooses_as_a_dynamic_one_while_keys_only_come_out_of_a_hold(rows, before, after):  # type: ignore[no-untyped-def]
    policy = ByTenant(before)
    stable, dynamic = StableQueue(policy), DynamicQueue(policy)
    for request in _requests(rows):
        stable.add(request, 0)
        dynamic.add(request, 0)
    for keys in (before, {t: after[t] if before[t] is None else before[t] for t in TENANTS}):
        policy.keys = keys
        assert stable.best(0) is dynamic.best(0)
        assert stable.ordered(0) == dynamic.ordered(0)
    for request in dynamic.requests():
        stable.remove(request)
    assert len(stable) == 0 and stable.best(0) is None


def test_the_queue_is_chosen_by_the_promise() -> None:
    class Stable(ByTenant):
        stable_waiting = True

    class Plain(SchedulingPolicy):
        def key(self, view: Request, now: int) -> Key:
            return ()

    keys: dict[str | None, int | None] = {}
    assert isinstance(make_queue(Stable(keys)), StableQueue)
    assert isinstance(make_queue(ByTenant(keys)), GroupedQueue)
    assert isinstance(make_queue(Plain()), DynamicQueue)
