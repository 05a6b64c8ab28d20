"""The waiting queue in policy order: kept sorted where the policy promises that it can be, else asked anew."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from typing import Protocol

from tinyllm.policy.base import Key, SchedulingPolicy
from tinyllm.policy.request import Request


def full_key(key: Key, request: Request) -> Key:
    """The policy's key with the tie-breakers that the scheduler appends: no two requests compare equal."""
    return (*key, request.arrival, request.index)


class WaitingQueue(Protocol):
    """Requests that wait for their first admission or for their return after a preemption."""

    def __len__(self) -> int: ...

    def add(self, request: Request, now: int) -> None:
        """Let a request wait."""

    def remove(self, request: Request) -> None:
        """Take a waiting request out."""

    def best(self, now: int) -> Request | None:
        """The request to admit next; None if all are held or there is none."""

    def ordered(self, now: int) -> list[Request]:
        """All that are not held, best first."""

    def requests(self) -> list[Request]:
        """All, in no promised order but a repeatable one."""


class StableQueue:
    """For policies with `stable_waiting`: sorted once, O(log n) to find; only held requests are asked anew."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self._sorted: list[tuple[Key, Request]] = []
        self._key_of: dict[str, Key] = {}
        self._held: list[Request] = []

    def __len__(self) -> int:
        return len(self._sorted) + len(self._held)

    def add(self, request: Request, now: int) -> None:
        key = self._policy.key(request, now)
        if key is None:
            self._held.append(request)
            return
        self._key_of[request.request_id] = entry_key = full_key(key, request)
        insort(self._sorted, (entry_key, request))

    def remove(self, request: Request) -> None:
        key = self._key_of.pop(request.request_id, None)
        if key is None:
            self._held.remove(request)
        else:
            # A one-tuple sorts before the pair that begins with it: the search never compares requests.
            del self._sorted[bisect_left(self._sorted, (key,))]

    def best(self, now: int) -> Request | None:
        if self._held:
            self._ask_held(now)
        return self._sorted[0][1] if self._sorted else None

    def ordered(self, now: int) -> list[Request]:
        self._ask_held(now)
        return [request for _, request in self._sorted]

    def requests(self) -> list[Request]:
        return [request for _, request in self._sorted] + self._held

    def _ask_held(self, now: int) -> None:
        held, self._held = self._held, []
        for request in held:
            self.add(request, now)


class GroupedQueue:
    """For policies with a `waiting_group`: each group by arrival, keys asked at each choice, O(groups)."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self._groups: dict[Hashable, list[tuple[int, int, Request]]] = {}
        self._num_requests = 0

    def __len__(self) -> int:
        return self._num_requests

    def add(self, request: Request, now: int) -> None:
        group = self._groups.setdefault(self._policy.waiting_group(request), [])
        insort(group, (request.arrival, request.index, request))
        self._num_requests += 1

    def remove(self, request: Request) -> None:
        name = self._policy.waiting_group(request)
        group = self._groups[name]
        del group[bisect_left(group, (request.arrival, request.index))]
        self._num_requests -= 1
        if not group:
            del self._groups[name]

    def best(self, now: int) -> Request | None:
        heads = [(full_key(key, group[0][2]), group[0][2]) for key, group in self._keyed(now)]
        return min(heads)[1] if heads else None

    def ordered(self, now: int) -> list[Request]:
        entries = [(full_key(key, entry[2]), entry[2]) for key, group in self._keyed(now) for entry in group]
        return [request for _, request in sorted(entries)]

    def requests(self) -> list[Request]:
        return [entry[2] for group in self._groups.values() for entry in group]

    def _keyed(self, now: int) -> Iterator[tuple[Key, list[tuple[int, int, Request]]]]:
        for group in self._groups.values():
            key = self._policy.key(group[0][2], now)
            if key is not None:
                yield key, group


class DynamicQueue:
    """For every other policy: keys are asked at each choice, O(n)."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self._requests: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request, now: int) -> None:
        self._requests[request.request_id] = request

    def remove(self, request: Request) -> None:
        del self._requests[request.request_id]

    def best(self, now: int) -> Request | None:
        keyed = self._keyed(now)
        return min(keyed)[1] if keyed else None

    def ordered(self, now: int) -> list[Request]:
        return [request for _, request in sorted(self._keyed(now))]

    def requests(self) -> list[Request]:
        return list(self._requests.values())

    def _keyed(self, now: int) -> list[tuple[Key, Request]]:
        ask = self._policy.key
        return [
            (full_key(key, request), request)
            for request in self._requests.values()
            if (key := ask(request, now)) is not None
        ]


def make_queue(policy: SchedulingPolicy) -> WaitingQueue:
    """The cheapest queue that the policy's promises allow."""
    if policy.stable_waiting:
        return StableQueue(policy)
    if type(policy).waiting_group is not SchedulingPolicy.waiting_group:
        return GroupedQueue(policy)
    return DynamicQueue(policy)
