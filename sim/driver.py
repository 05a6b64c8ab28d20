"""The SimPy driver: an hour of an engine in seconds. A timer for the clients, one process for each engine."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

import simpy

from sim.clients import NanosecondEnvironment, SimulatedClients
from sim.cost.base import CostModel
from tinyllm.engine.clients import Clients, Due
from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.engine.record.workload import ArrivalRecord, request_from
from tinyllm.engine.refresh import RefreshedPredictions
from tinyllm.policy.request import BlockHash, Request

Progress = Callable[[int, int], None]
"""Called now and then with the simulated time in ns and the number of requests that have ended."""

PromptHashes = Callable[[ArrivalRecord], Sequence[BlockHash]]
"""Gives the hashes of the full blocks of the prompt of a record that is submitted at its arrival."""

OnEnd = Callable[[Request, int], None]
"""Told of each request that ended, for whatever reason, and when, in ns."""

_PROGRESS_STEPS = 512


class SimulatedEngine:
    """An engine core on a simulated clock, fed with what its clients do by `deliver`.

    At one instant the order is: a step that ends is accounted, then everything that is due is added or
    aborted, then the next step begins.

    Args:
        env: the simulated clock.
        core: the engine; its output processor must be the simulation's.
        cost: how long a step takes, and how long the host needs between steps.
        prompt_hashes: the hashes of a record's full prompt blocks; None without a prefix cache.
        on_end: is told of each end; a refused request ends when it was submitted.
    """

    def __init__(
        self,
        env: NanosecondEnvironment,
        core: EngineCore,
        cost: CostModel,
        prompt_hashes: PromptHashes | None = None,
        progress: Progress | None = None,
        on_end: OnEnd | None = None,
    ) -> None:
        outputs = core.output_processor
        outputs = outputs.inner if isinstance(outputs, RefreshedPredictions) else outputs
        if not isinstance(outputs, TargetLengthProcessor):
            raise TypeError("a simulated engine needs the TargetLengthProcessor")
        self._env = env
        self._core = core
        self._targets = outputs
        self._cost = cost
        self._prompt_hashes = prompt_hashes
        self._progress = progress
        self._on_end = on_end
        self._due: list[Due] = []
        self._wake: simpy.Event | None = None
        self._num_ended = 0
        self.process = env.process(self._run())

    def deliver(self, due: Sequence[Due]) -> None:
        """Hand in what clients do at this instant."""
        for item in due:
            heappush(self._due, item)
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None

    def _run(self) -> Generator[simpy.Event, Any, None]:
        env, core, cost = self._env, self._core, self._cost
        while True:
            if self._due:
                self._take_up_due()
            batch = core.begin_step(env.now)
            if core.dropped:
                self._ended(core.dropped, env.now)
            if batch is None:
                if not self._due:
                    self._wake = env.event()
                    yield self._wake
                continue
            yield env.timeout(cost.step_ns(batch))
            finished = core.finish_step(batch, None, env.now)
            if finished:
                self._ended(finished, env.now)
            if gap := cost.gap_ns(batch):
                yield env.timeout(gap)
            core.ready(env.now)
            if self._progress is not None and core.num_steps % _PROGRESS_STEPS == 0:
                self._progress(env.now, self._num_ended)

    def _take_up_due(self) -> None:
        while self._due:
            due = heappop(self._due)
            if due.aborts:
                self._abort(due.record.request_id)
            else:
                self._add(due.record)

    def _add(self, record: ArrivalRecord) -> None:
        now = self._env.now
        request = request_from(record)
        # A prompt that is refused may be absurdly long: it gets no hashes.
        if self._prompt_hashes and self._core.scheduler.refusal(request, now) is None:
            request.block_hashes += self._prompt_hashes(record)
        refused = self._core.add_request(record, request, now, submitted=record.arrival_ns)
        if refused is None:
            self._targets.add(request, record.target_output_tokens)
        else:
            self._ended([request], record.arrival_ns)

    def _abort(self, request_id: str) -> None:
        """Take a request back for its client, unless it has ended in the meantime."""
        request = self._core.scheduler.get(request_id)
        if request is not None:
            self._core.abort(request_id, self._env.now)
            self._ended([request], self._env.now)

    def _ended(self, requests: Iterable[Request], end_ns: int) -> None:
        for request in requests:
            self._num_ended += 1
            if self._on_end is not None:
                self._on_end(request, end_ns)


class Simulation:
    """A workload, one engine and a simulated clock.

    Args:
        workload: records sorted by `arrival_ns`, each sent at its arrival; or clients who may do otherwise.
        core, cost, prompt_hashes, progress, on_end: see `SimulatedEngine`.
    """

    def __init__(
        self,
        workload: Sequence[ArrivalRecord] | Clients,
        core: EngineCore,
        cost: CostModel,
        prompt_hashes: PromptHashes | None = None,
        progress: Progress | None = None,
        on_end: OnEnd | None = None,
    ) -> None:
        clients = workload if isinstance(workload, Clients) else Clients(workload)
        self._env = NanosecondEnvironment(initial_time=0)
        self._on_end = on_end
        engine = SimulatedEngine(
            self._env, core, cost, prompt_hashes, progress, self._tell if clients.listens else on_end
        )
        self._clients = SimulatedClients(self._env, clients, engine.deliver)

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

    def _tell(self, request: Request, end_ns: int) -> None:
        if self._on_end is not None:
            self._on_end(request, end_ns)
        self._clients.end(request.request_id, end_ns)
