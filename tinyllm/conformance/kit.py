"""Runs every check in many random worlds and keeps the smallest one in which it fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from traceback import extract_tb

from tinyllm.conformance.checks import CHECKS, Check, MakePolicy, draw
from tinyllm.conformance.measures import Measures
from tinyllm.conformance.simpler import simplest
from tinyllm.conformance.stepper import Stepper
from tinyllm.conformance.world import World


@dataclass(frozen=True)
class Fault:
    """A broken promise: which, what was seen, and the smallest world that shows it (at most 10 requests).

    `world.run(policy)` runs it again.
    """

    check: Check
    what: str
    world: World


@dataclass
class Report:
    """What the kit found out about a policy."""

    worlds: int = 0
    faults: list[Fault] = field(default_factory=list)
    measures: Measures = field(default_factory=Measures)
    baseline: Measures = field(default_factory=Measures)

    @property
    def passes(self) -> bool:
        """Whether no promise was seen broken."""
        return not self.faults


def conform(make: MakePolicy, *, max_examples: int = 200, seed: int = 0) -> Report:
    """Run a policy through random worlds; the same arguments give the same report.

    Args:
        make: makes a new policy object at each call, such as the policy's class.
        max_examples: worlds for each check.
    """
    report = Report()
    for check in CHECKS:
        search = _Search(check, make, report)
        search.run(max_examples, seed)
        if search.smallest is not None:
            report.faults.append(search.smallest)
    return report


class _Search:
    """One check in random worlds, up to the first that fails; then in simpler and simpler ones.

    Whatever fails is kept at once: a policy that is not repeatable may pass in the same world the next time.
    """

    def __init__(self, check: Check, make: MakePolicy, report: Report) -> None:
        self._check, self._make, self._report = check, make, report
        self.smallest: Fault | None = None

    def run(self, max_examples: int, seed: int) -> None:
        policy = self._make()
        for number in range(max_examples):
            world = draw(self._check, Random(f"{seed}/{self._check.name}/{number}"), policy)
            self._report.worlds += 1
            if self._try(world) is not None:
                simplest(world, lambda simpler: self._try(simpler) is not None)
                return

    def _try(self, world: World) -> Fault | None:
        """Run the check in a world; a fault is kept if there is none in a smaller one."""
        try:
            result = self._check.run(self._make, world)
        except AssertionError as error:
            fault = Fault(self._check, str(error), world)
        except Exception as error:
            where = extract_tb(error.__traceback__)[-1]
            fault = Fault(
                self._check, f"raised {error!r} ({Path(where.filename).name}, line {where.lineno})", world
            )
        else:
            if isinstance(result, Stepper) and self.smallest is None:
                self._report.measures.add(result)
                self._report.baseline.add(world.run("fcfs"))
            return None
        if self.smallest is None or _size(world) <= _size(self.smallest.world):
            self.smallest = fault
        return fault


def _size(world: World) -> tuple[int, int, int]:
    tokens = sum(arrival.prompt + arrival.output for arrival in world.arrivals)
    return len(world.arrivals), tokens, len(repr(world))
