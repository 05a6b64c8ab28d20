"""The clients of a workload on the simulated clock: one timer, set to what they do next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify
from typing import TYPE_CHECKING

import simpy
from simpy.events import URGENT

from tinyllm.engine.clients import Clients, Due


class NanosecondEnvironment(simpy.Environment):
    """A SimPy environment whose clock counts integer nanoseconds: sums are exact, ties are real ties."""

    if TYPE_CHECKING:

        @property
        def now(self) -> int: ...

    def cancel(self, event: simpy.Event) -> None:
        """Take back a scheduled event. SimPy has no such thing: left alone, it would prolong the simulation."""
        self._queue = [entry for entry in self._queue if entry[3] is not event]
        heapify(self._queue)


class _UrgentTimeout(simpy.Event):
    """A timeout that comes before every ordinary event of its instant.

    Whatever arrives at the very end of a step is thus due before the step after it begins.
    """

    def __init__(self, env: NanosecondEnvironment, delay: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, URGENT, delay)


class SimulatedClients:
    """Delivers what the clients do at its time, all of one instant together and in order.

    Args:
        env: the simulated clock.
        clients: who does what when.
        deliver: takes what is due.
    """

    def __init__(
        self, env: NanosecondEnvironment, clients: Clients, deliver: Callable[[Sequence[Due]], None]
    ) -> None:
        self._env = env
        self._clients = clients
        self._deliver = deliver
        self._timer: _UrgentTimeout | None = None
        self._timer_ns: int | None = None
        self._set_timer()

    def end(self, request_id: str, end_ns: int) -> None:
        """A request ended; what is due at once because of it is delivered at once."""
        self._clients.end(request_id, end_ns)
        self._deliver_due()

    def _ring(self, timer: simpy.Event) -> None:
        self._timer = self._timer_ns = None
        self._deliver_due()

    def _deliver_due(self) -> None:
        due = self._clients.take(self._env.now)
        if due:
            self._deliver(due)
        self._set_timer()

    def _set_timer(self) -> None:
        next_ns = self._clients.next_due()
        if next_ns == self._timer_ns:
            return
        if self._timer is not None:
            self._env.cancel(self._timer)
            self._timer = None
        self._timer_ns = next_ns
        if next_ns is not None:
            self._timer = _UrgentTimeout(self._env, next_ns - self._env.now)
            assert self._timer.callbacks is not None
            self._timer.callbacks.append(self._ring)
