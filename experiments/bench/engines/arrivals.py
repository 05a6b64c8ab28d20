"""Requests that are handed over when they are due, whatever the engine does meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from experiments.bench.jobs import BenchRequest


class Clock:
    """Seconds since it was made, by `time.perf_counter`."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def __call__(self) -> float:
        return time.perf_counter() - self._start

    def of(self, stamp: float) -> float:
        """What this clock showed at a stamp of `time.perf_counter`."""
        return stamp - self._start


class Submitter:
    """A thread that waits for absolute due times, never for gaps: lateness does not add up.

    Args:
        requests: of a job.
        clock: of the job.
        hand_over: takes a request and the time; called from the thread.
    """

    def __init__(
        self,
        requests: Sequence[BenchRequest],
        clock: Callable[[], float],
        hand_over: Callable[[BenchRequest, float], None],
    ) -> None:
        self._requests = sorted(requests, key=lambda request: request.arrival_s)
        self._clock = clock
        self._hand_over = hand_over
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="submitter", daemon=True)

    def start(self) -> None:
        """Begin to hand over: before this returns, what is due at the start."""
        due = [request for request in self._requests if request.arrival_s <= 0]
        for request in due:
            self._hand_over(request, self._clock())
        self._requests = self._requests[len(due) :]
        if self._requests:
            self._thread.start()

    def stop(self) -> None:
        """Hand over nothing more."""
        self._stopped.set()

    def _run(self) -> None:
        for request in self._requests:
            if self._stopped.wait(max(0.0, request.arrival_s - self._clock())):
                return
            self._hand_over(request, self._clock())


class Inbox:
    """Where requests lie from when they are handed over until the engine takes them in, between two steps."""

    def __init__(self, requests: Sequence[BenchRequest], clock: Callable[[], float]) -> None:
        self._queue: SimpleQueue[tuple[BenchRequest, float]] = SimpleQueue()
        self._submitter = Submitter(requests, clock, lambda request, at: self._queue.put((request, at)))
        self._num_left = len(requests)
        self._submitter.start()

    def __bool__(self) -> bool:
        """Whether a request is there or to come."""
        return self._num_left > 0

    def take(self, wait: bool) -> list[tuple[BenchRequest, float]]:
        """What was handed over and not taken yet, each with the time of that.

        Args:
            wait: for at least one, if one is to come.
        """
        taken: list[tuple[BenchRequest, float]] = []
        while self:
            try:
                taken.append(self._queue.get(block=wait and not taken))
            except Empty:
                break
            self._num_left -= 1
        return taken

    def close(self) -> None:
        """Take no more."""
        self._submitter.stop()
