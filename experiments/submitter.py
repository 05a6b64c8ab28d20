"""The open-loop client of a real replay: hands each request over at its due time, whatever the engine does."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from tinyllm.engine.record.workload import NS, ArrivalRecord


class Submitter:
    """A thread that waits for absolute due times on the run's clock, never for gaps: lateness does not add up.

    Args:
        records: sorted by arrival.
        clock: ns since the start of the run.
    """

    def __init__(self, records: Sequence[ArrivalRecord], clock: Callable[[], int]) -> None:
        self._records = records
        self._clock = clock
        self._due: deque[tuple[ArrivalRecord, int]] = deque()
        self._arrived = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="submitter", daemon=True)

    def start(self) -> None:
        """Begin to hand over."""
        self._thread.start()

    def stop(self) -> None:
        """Hand over nothing more; returns when the thread has ended."""
        self._stopped.set()
        self._thread.join()

    def take(self, now: int) -> list[tuple[ArrivalRecord, int]]:
        """The requests handed over by `now` and not taken yet, each with the time of that."""
        taken = []
        while self._due and self._due[0][1] <= now:
            taken.append(self._due.popleft())
        return taken

    def wait(self) -> bool:
        """Wait, at most 0.1 s, for another request; False if none is left to come."""
        if self._due:
            return True
        if not self._thread.is_alive():
            return bool(self._due)
        self._arrived.wait(0.1)
        self._arrived.clear()
        return True

    def _run(self) -> None:
        for record in self._records:
            while (left := record.arrival_ns - self._clock()) > 0:
                if self._stopped.wait(left / NS):
                    return
            self._due.append((record, self._clock()))
            self._arrived.set()
