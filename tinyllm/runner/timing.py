"""How long a step took on the device that ran it."""

from __future__ import annotations

import time
from types import TracebackType

import torch


class StepTimer:
    """Times the body of a `with`; on CUDA by events on the device, and the body's end waits for the device.

    Attributes:
        elapsed_ns: of the last body, 0 before the first.
    """

    def __init__(self, device: torch.device) -> None:
        self.elapsed_ns = 0
        self._start_ns = 0
        self._events: tuple[torch.cuda.Event, ...] = ()
        if device.type == "cuda":
            # torch types this constructor not at all.
            self._events = tuple(_cuda_event() for _ in range(2))

    def __enter__(self) -> None:
        self._start_ns = time.perf_counter_ns()
        if self._events:
            self._events[0].record()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._events:
            start, end = self._events
            end.record()
            end.synchronize()
            self.elapsed_ns = round(start.elapsed_time(end) * 1e6)
        else:
            self.elapsed_ns = time.perf_counter_ns() - self._start_ns


def _cuda_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
