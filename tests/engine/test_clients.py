"""What clients do when: recorded arrivals, turns that wait, and requests that are given up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tinyllm.engine.clients import Clients, moved
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.engine.sessions import Turn


def row(number: int, arrival_ns: int) -> ArrivalRecord:
    return ArrivalRecord(f"r{number}", number, arrival_ns, 1, 1, 1)


def taken(clients: Clients, now: int) -> list[tuple[int, str, bool]]:
    return [(due.due_ns, due.record.request_id, due.aborts) for due in clients.take(now)]


def test_arrivals_are_due_at_their_times_and_ties_come_in_the_order_of_the_workload() -> None:
    clients = Clients([row(0, 5), row(1, 5), row(2, 9)])
    assert not clients.listens
    assert clients.next_due() == 5 and taken(clients, 4) == []
    assert taken(clients, 5) == [(5, "r0", False), (5, "r1", False)]
    assert clients.next_due() == 9 and taken(clients, 100) == [(9, "r2", False)]
    assert clients.next_due() is None


def test_a_waiting_turn_is_due_a_think_time_after_the_end_whatever_the_trace_says() -> None:
    clients = Clients([row(0, 0), row(1, 3)], {"r1": Turn("r0", None, 7)})
    assert clients.listens and clients.num_waiting == 1
    assert taken(clients, 10) == [(0, "r0", False)]
    assert clients.next_due() is None
    clients.end("r0", 20)
    assert clients.num_waiting == 0 and clients.next_due() == 27
    (due,) = clients.take(27)
    assert (due.due_ns, due.record.arrival_ns) == (27, 27)


def test_one_end_releases_every_turn_that_waits_for_it() -> None:
    clients = Clients([row(n, 0) for n in range(3)], {"r1": Turn("r0", None, 9), "r2": Turn("r0", None, 4)})
    clients.take(0)
    clients.end("r0", 10)
    assert taken(clients, 30) == [(14, "r2", False), (19, "r1", False)]


def test_a_request_is_given_up_a_timeout_after_its_arrival_unless_it_has_ended() -> None:
    clients = Clients([row(0, 0), row(1, 2)], timeout_ns=10)
    assert clients.listens and taken(clients, 2) == [(0, "r0", False), (2, "r1", False)]
    clients.end("r0", 9)
    assert clients.next_due() == 12
    assert taken(clients, 12) == [(12, "r1", True)]
    assert clients.next_due() is None


def test_a_timeout_that_nobody_needs_is_not_due() -> None:
    clients = Clients([row(0, 0)], timeout_ns=10)
    clients.take(0)
    clients.end("r0", 9)
    assert clients.next_due() is None and clients.take(99) == []


def test_who_comes_too_late_to_be_taken_up_in_time_is_sent_and_given_up_at_once() -> None:
    clients = Clients([row(0, 0)], timeout_ns=10)
    assert taken(clients, 50) == [(0, "r0", False), (10, "r0", True)]


def test_deadlines_move_with_the_arrival() -> None:
    record = ArrivalRecord("r0", 0, 100, 1, 1, 1, ttft_deadline_ns=150, e2e_deadline_ns=None)
    later = moved(record, 130)
    assert (later.arrival_ns, later.ttft_deadline_ns, later.e2e_deadline_ns) == (130, 180, None)


@given(
    arrivals=st.lists(st.integers(0, 30), max_size=12), timeout=st.none() | st.integers(1, 20), data=st.data()
)
def test_what_is_taken_is_due_in_order_and_every_request_is_sent_once(
    arrivals: list[int], timeout: int | None, data: st.DataObject
) -> None:
    records = [row(n, at) for n, at in enumerate(sorted(arrivals))]
    turns = {
        f"r{n}": Turn(f"r{data.draw(st.integers(0, n - 1))}", None, data.draw(st.integers(0, 9)))
        for n in range(1, len(records))
        if data.draw(st.booleans())
    }
    clients = Clients(records, turns, timeout)
    sent: list[str] = []
    ends: dict[str, int] = {}
    while (now := clients.next_due()) is not None:
        due = clients.take(now)
        assert due == sorted(due) and all(item.due_ns <= now for item in due)
        for item in due:
            name = item.record.request_id
            if item.aborts:
                assert item.due_ns == item.record.arrival_ns + (timeout or 0)
                assert name not in ends
            else:
                sent.append(name)
                turn = turns.get(name)
                recorded = records[item.position].arrival_ns
                assert item.record.arrival_ns == (ends[turn.after] + turn.think_ns if turn else recorded)
            if item.aborts or timeout is None or data.draw(st.booleans()):
                ends[name] = now
                clients.end(name, now)
    assert sorted(sent) == sorted(record.request_id for record in records)
    assert clients.num_waiting == 0
