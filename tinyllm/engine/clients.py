"""What the clients of a workload do, and when: they send, wait for answers, and give up. It reads no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.engine.sessions import Turn


class Due(NamedTuple):
    """Something that a client does; sorts by time, then by the request's place in the workload.

    Attributes:
        due_ns: when.
        position: of the record in the workload.
        aborts: takes the request back instead of sending it.
        record: the request, with its realised arrival.
    """

    due_ns: int
    position: int
    aborts: bool
    record: ArrivalRecord


class Clients:
    """Who sends a request when. A driver takes what is due and, if it `listens`, is told of each end.

    Args:
        records: the workload, sorted by arrival.
        waiting_turns: requests that are sent when another one has ended and the client has thought, by id;
            all others are sent at their recorded arrival.
        timeout_ns: a request that has not ended so long after its arrival is taken back.
    """

    def __init__(
        self,
        records: Sequence[ArrivalRecord],
        waiting_turns: Mapping[str, Turn] | None = None,
        timeout_ns: int | None = None,
    ) -> None:
        turns = waiting_turns or {}
        self._timeout_ns = timeout_ns
        self._arrivals: list[Due] = []
        self._waiting: dict[str, list[tuple[int, Due]]] = {}
        for position, record in enumerate(records):
            due = Due(record.arrival_ns, position, False, record)
            turn = turns.get(record.request_id)
            if turn is None:
                self._arrivals.append(due)
            else:
                self._waiting.setdefault(turn.after, []).append((turn.think_ns, due))
        heapify(self._arrivals)
        # The end of a request leaves its entry in the heap; who is not in the set needs none any more.
        self._timeouts: list[Due] = []
        self._timed: set[str] = set()

    @property
    def listens(self) -> bool:
        """Whether the end of a request changes what is due."""
        return bool(self._waiting) or self._timeout_ns is not None

    @property
    def num_waiting(self) -> int:
        """Turns whose predecessor has not ended."""
        return sum(map(len, self._waiting.values()))

    def next_due(self) -> int | None:
        """When something is due next, in ns; None if nothing is, unless a request ends."""
        while self._timeouts and self._timeouts[0].record.request_id not in self._timed:
            heappop(self._timeouts)
        return min((queue[0].due_ns for queue in (self._arrivals, self._timeouts) if queue), default=None)

    def take(self, now: int) -> list[Due]:
        """What is due by now and was not taken yet, in order."""
        taken = []
        while self._arrivals and self._arrivals[0].due_ns <= now:
            due = heappop(self._arrivals)
            taken.append(due)
            if self._timeout_ns is not None:
                self._timed.add(due.record.request_id)
                heappush(self._timeouts, due._replace(due_ns=due.due_ns + self._timeout_ns, aborts=True))
        while self._timeouts and self._timeouts[0].due_ns <= now:
            due = heappop(self._timeouts)
            if due.record.request_id in self._timed:
                self._timed.remove(due.record.request_id)
                taken.append(due)
        taken.sort()
        return taken

    def end(self, request_id: str, now: int) -> None:
        """A request ended, for whatever reason: its clients stop waiting for it, and think."""
        self._timed.discard(request_id)
        for think_ns, due in self._waiting.pop(request_id, ()):
            at = now + think_ns
            heappush(self._arrivals, due._replace(due_ns=at, record=moved(due.record, at)))


def moved(record: ArrivalRecord, arrival_ns: int) -> ArrivalRecord:
    """The record at another arrival; its deadlines move with it."""
    later = arrival_ns - record.arrival_ns
    ttft, e2e = record.ttft_deadline_ns, record.e2e_deadline_ns
    return replace(
        record,
        arrival_ns=arrival_ns,
        ttft_deadline_ns=None if ttft is None else ttft + later,
        e2e_deadline_ns=None if e2e is None else e2e + later,
    )
