from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from experiments.bench.engines.arrivals import Clock, Inbox, Submitter
from experiments.bench.jobs import BenchRequest


@given(st.lists(st.sampled_from([0.0, 0.001, 0.004, 0.01]), max_size=8))
def test_every_request_comes_out_once_in_order_and_never_before_it_is_due(arrivals: list[float]) -> None:
    requests = [BenchRequest(f"r{n}", [1], 1, at) for n, at in enumerate(arrivals)]
    inbox = Inbox(requests, clock := Clock())
    taken = []
    while inbox:
        new = inbox.take(wait=True)
        assert new
        taken += new
    assert inbox.take(wait=True) == []
    assert [request for request, _ in taken] == sorted(requests, key=lambda request: request.arrival_s)
    assert all(request.arrival_s <= submitted <= clock() for request, submitted in taken)


def test_what_is_due_at_the_start_is_there_before_anything_else_happens() -> None:
    inbox = Inbox(
        [BenchRequest("late", [1], 1, 60.0), BenchRequest("a", [1], 1), BenchRequest("b", [1], 1)], Clock()
    )
    assert [request.request_id for request, _ in inbox.take(wait=False)] == ["a", "b"]
    assert inbox and inbox.take(wait=False) == []
    inbox.close()


def test_a_submitter_that_is_stopped_hands_over_nothing_more() -> None:
    handed: list[str] = []
    clock = Clock()
    submitter = Submitter(
        [BenchRequest("now", [1], 1), BenchRequest("later", [1], 1, 0.05)],
        clock,
        lambda request, at: handed.append(request.request_id),
    )
    submitter.start()
    submitter.stop()
    while clock() < 0.1:
        pass
    assert handed == ["now"]
