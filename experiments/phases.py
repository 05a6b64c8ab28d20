"""Where the wall time of a simulated step goes: exclusive timers around the engine's own functions."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from sim.cost import LinearCostModel
from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.engine.record.recorder import LogRecorder
from tinyllm.engine.record.writer import LogWriter
from tinyllm.policy.scheduler import Scheduler

PHASES: tuple[tuple[str, type, tuple[str, ...]], ...] = (
    ("schedule", Scheduler, ("schedule",)),
    ("output processor", TargetLengthProcessor, ("process",)),
    ("update from output", Scheduler, ("update_from_output",)),
    ("record", LogRecorder, ("queued", "stepped", "ready", "close")),
    ("write Parquet", LogWriter, ("flush",)),
    ("cost model", LinearCostModel, ("step_ns", "gap_ns")),
    ("arrivals", EngineCore, ("add_request",)),
)
"""A phase, and the methods whose time it is, without that of other phases inside them."""

REST = "SimPy and driver"


class PhaseTimer:
    """Seconds by phase, exclusive of nested phases.

    Attributes:
        total_s, num_steps: of the whole run, known after `finish`.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {phase: 0.0 for phase, _, _ in PHASES}
        self.total_s = 0.0
        self.num_steps = 0
        self._nested = [0.0]

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` with its time counted."""
        seconds, nested, clock = self.seconds, self._nested, time.perf_counter

        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nested.append(0.0)
            started = clock()
            try:
                return function(*args, **kwargs)
            finally:
                elapsed = clock() - started
                seconds[phase] += elapsed - nested.pop()
                nested[-1] += elapsed

        return wrapper

    def finish(self, total_s: float, num_steps: int) -> None:
        """Take the run's total; what no phase claims is the driver's."""
        self.total_s, self.num_steps = total_s, num_steps

    def shares(self) -> list[tuple[str, float]]:
        """(phase, seconds), largest first, the rest last; they add up to the total."""
        ordered = sorted(self.seconds.items(), key=lambda item: -item[1])
        return [*ordered, (REST, self.total_s - sum(self.seconds.values()))]


def instrument() -> PhaseTimer:
    """Put timers into the classes of `PHASES`, for the rest of this process."""
    timer = PhaseTimer()
    for phase, owner, methods in PHASES:
        for method in methods:
            setattr(owner, method, timer.timed(phase, getattr(owner, method)))
    return timer
