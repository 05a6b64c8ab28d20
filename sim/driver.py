"""The SimPy driver: an hour of an engine in seconds. One process for the arrivals, one for each engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import simpy
from simpy.events import URGENT

from sim.cost.base import CostModel
from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.engine.record.workload import ArrivalRecord, request_from
from tinyllm.policy.request import BlockHash

Progress = Callable[[int, int], None]
"""Called now and then with the simulated time in ns and the number of requests that have ended."""

PromptHashes = Callable[[ArrivalRecord], Sequence[BlockHash]]
"""Gives the hashes of the full blocks of a record's prompt."""

_PROGRESS_STEPS = 512


class NanosecondEnvironment(simpy.Environment):
    """A SimPy environment whose clock counts integer nanoseconds: sums are exact, ties are real ties."""

    if TYPE_CHECKING:

        @property
        def now(self) -> int: ...


class _UrgentTimeout(simpy.Event):
    """A timeout that comes before every ordinary event of its instant.

    Whatever arrives at the very end of a step is thus due before the step after it begins.
    """

    def __init__(self, env: NanosecondEnvironment, delay: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, URGENT, delay)


class SimulatedEngine:
    """An engine core on a simulated clock, fed with arrivals by `deliver`.

    At one instant the order is: a step that ends is accounted, then everything that is due is added, then
    the next step begins.

    Args:
        env: the simulated clock.
        core: the engine; its output processor must be the simulation's.
        cost: how long a step takes, and how long the host needs between steps.
        prompt_hashes: the hashes of a record's full prompt blocks; None without a prefix cache.
    """

    def __init__(
        self,
        env: NanosecondEnvironment,
        core: EngineCore,
        cost: CostModel,
        prompt_hashes: PromptHashes | None = None,
        progress: Progress | None = None,
    ) -> None:
        if not isinstance(core.output_processor, TargetLengthProcessor):
            raise TypeError("a simulated engine needs the TargetLengthProcessor")
        self._env = env
        self._core = core
        self._targets = core.output_processor
        self._cost = cost
        self._prompt_hashes = prompt_hashes
        self._progress = progress
        self._due: deque[ArrivalRecord] = deque()
        self._wake: simpy.Event | None = None
        self._num_ended = 0
        self.process = env.process(self._run())

    def deliver(self, records: Sequence[ArrivalRecord]) -> None:
        """Hand in all requests that are due at this instant."""
        self._due.extend(records)
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None

    def _run(self) -> Generator[simpy.Event, Any, None]:
        env, core, cost = self._env, self._core, self._cost
        while True:
            if self._due:
                self._add_due()
            batch = core.begin_step(env.now)
            if batch is None:
                self._wake = env.event()
                yield self._wake
                continue
            yield env.timeout(cost.step_ns(batch))
            self._num_ended += len(core.finish_step(batch, None, env.now))
            if gap := cost.gap_ns(batch):
                yield env.timeout(gap)
            core.ready(env.now)
            if self._progress is not None and core.num_steps % _PROGRESS_STEPS == 0:
                self._progress(env.now, self._num_ended)

    def _add_due(self) -> None:
        while self._due:
            record = self._due.popleft()
            request = request_from(record)
            # A prompt that is refused may be absurdly long: it gets no hashes.
            if self._prompt_hashes and self._core.scheduler.refusal(request) is None:
                request.block_hashes += self._prompt_hashes(record)
            refused = self._core.add_request(record, request, self._env.now, submitted=record.arrival_ns)
            if refused is None:
                self._targets.add(request, record.target_output_tokens)
            else:
                self._num_ended += 1


def arrivals(
    env: NanosecondEnvironment,
    records: Sequence[ArrivalRecord],
    deliver: Callable[[Sequence[ArrivalRecord]], None],
) -> Generator[simpy.Event, Any, None]:
    """The open-loop arrival process: hands in the requests of each instant together, in the given order.

    Args:
        records: sorted by `arrival_ns`; ties stay in their order.
    """
    for stamp, group in _by_stamp(records):
        if stamp > env.now:
            yield _UrgentTimeout(env, stamp - env.now)
        deliver(group)


def _by_stamp(records: Sequence[ArrivalRecord]) -> Iterator[tuple[int, list[ArrivalRecord]]]:
    for stamp, group in groupby(records, key=lambda record: record.arrival_ns):
        yield stamp, list(group)


class Simulation:
    """A workload, one engine and a simulated clock.

    Args:
        records: sorted by `arrival_ns`.
        core, cost, prompt_hashes, progress: see `SimulatedEngine`.
    """

    def __init__(
        self,
        records: Sequence[ArrivalRecord],
        core: EngineCore,
        cost: CostModel,
        prompt_hashes: PromptHashes | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._env = NanosecondEnvironment(initial_time=0)
        engine = SimulatedEngine(self._env, core, cost, prompt_hashes, progress)
        self._env.process(arrivals(self._env, records, engine.deliver))

    @property
    def now(self) -> int:
        """Simulated time, integer ns."""
        return self._env.now

    def run(self) -> None:
        """Run until nothing is left to happen.

        If the engine has unfinished requests then (`core.num_unfinished`), it is stalled: the policy holds
        them, and nothing to come can release them.
        """
        self._env.run()
