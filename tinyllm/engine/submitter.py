"""The clients of a real replay: each does what it does at its due time, whatever the engine does."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tinyllm.engine.clients import Clients, Due
from tinyllm.engine.record.workload import NS


class Submitter:
    """A thread that waits for absolute due times on the run's clock, never for gaps: lateness does not add up.

    Args:
        clients: who does what when; touched by nobody else while the thread runs.
        clock: ns since the start of the run.
    """

    def __init__(self, clients: Clients, clock: Callable[[], int]) -> None:
        self._clients = clients
        self._clock = clock
        self._due: deque[tuple[Due, int]] = deque()
        self._changed = threading.Condition()
        self._arrived = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="submitter", daemon=True)

    def start(self) -> None:
        """Begin to hand over: before this returns, what is due at the start."""
        self._hand_over()
        self._thread.start()

    def stop(self) -> None:
        """Hand over nothing more; returns when the thread has ended."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def end(self, request_id: str, end_ns: int) -> None:
        """A request ended, which may make something due earlier than all that was known before."""
        with self._changed:
            self._clients.end(request_id, end_ns)
            self._changed.notify()

    def take(self, now: int) -> list[tuple[Due, int]]:
        """What was handed over by `now` and not taken yet, each with the time of that."""
        taken = []
        while self._due and self._due[0][1] <= now:
            taken.append(self._due.popleft())
        return taken

    def wait(self) -> bool:
        """Wait, at most 0.1 s, for something to be handed over; False if nothing is left to come."""
        with self._changed:
            if not self._due and self._clients.next_due() is None:
                return False
        if not self._due:
            self._arrived.wait(0.1)
        self._arrived.clear()
        return True

    def _run(self) -> None:
        with self._changed:
            while not self._stopped:
                self._hand_over()
                next_ns = self._clients.next_due()
                left = None if next_ns is None else max(0, next_ns - self._clock()) / NS
                self._changed.wait(left)

    def _hand_over(self) -> None:
        for due in self._clients.take(self._clock()):
            self._due.append((due, self._clock()))
            self._arrived.set()
