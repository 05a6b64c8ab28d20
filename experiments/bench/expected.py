"""How long a plan will take, roughly: a multiple of the floor that the machine's ceilings give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from experiments.bench.floor import Ceilings, Floor
from experiments.bench.plan import MAX_NUM_SEQS, Plan
from experiments.bench.workloads import Workload

OVER_FLOOR: Final = 3.0
"""How many times the floor an engine takes: vLLM and Transformers take 2.5 to 3.5 times it on a CPU of two cores."""

START_S: Final = 20.0
"""For starting an engine, loading the model and warming up."""


@dataclass(frozen=True)
class Expected:
    """Seconds: of each workload on one engine, in the plan's order, and of the whole run."""

    by_item: dict[str, float]
    total: float


def expected_time(plan: Plan, machine: Ceilings) -> Expected:
    """An estimate from a measurement of the machine; an engine twice as fast as supposed takes half of it."""
    floor = Floor.of(plan.shape, plan.options.dtype)
    by_item: dict[str, float] = {}
    at_once = {each.name: OVER_FLOOR * _seconds(floor, each.at_once(), machine) for each in plan.streams}
    for item in plan.items:
        if item.workload is not None:
            by_item[item.name] = OVER_FLOOR * _seconds(floor, item.workload, machine)
        elif item.stream is not None:
            measured = len(item.stream.rows) - item.stream.num_warmup
            by_item[item.name] = (
                at_once[item.stream.name] * len(item.stream.rows) / measured / min(1.0, item.load)
            )
    engines = len(plan.engines)
    return Expected(by_item, engines * (START_S + plan.repeats * sum(by_item.values())))


def _seconds(floor: Floor, workload: Workload, machine: Ceilings) -> float:
    """In batches of as many as run at once."""
    starts = range(0, len(workload.requests), MAX_NUM_SEQS)
    return sum(floor.seconds(workload.requests[start : start + MAX_NUM_SEQS], machine) for start in starts)
