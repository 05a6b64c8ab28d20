"""Re-simulation: the SimPy engine driven by the step times, submissions and outputs of a recorded run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from sim.clients import NanosecondEnvironment
from sim.driver import OnEnd
from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import private_hash
from tinyllm.engine.record.workload import ArrivalRecord, request_from
from tinyllm.engine.runner import StepResult
from tinyllm.policy.batch import ONE_TOKEN, Outcome, ScheduledBatch
from tinyllm.policy.request import BlockHash, FinishReason, Request

SubmittedHashes = Callable[[ArrivalRecord, int], Sequence[BlockHash]]
"""Gives the hashes of the full blocks of the prompt of a record that is submitted at a time, in ns."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """When a step began and ended, and when the next one could have begun: absolute, integer ns."""

    start_ns: int
    end_ns: int
    ready_ns: int


@dataclass(frozen=True, slots=True)
class RecordedOutput:
    """How a request ended.

    Attributes:
        last_step: the step in which it finished; None if it was aborted or is unfinished.
        reason: why it finished.
        block_hashes: of its prompt's and generated full blocks, in order, where the run recorded them; else
            a generated block is its own.
    """

    last_step: int | None
    reason: FinishReason
    block_hashes: Sequence[BlockHash] | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """A request handed over, or (`aborted`) taken back, before a step.

    Attributes:
        submitted_ns: when its client sent it.
        taken_up_ns: when the engine took that up, or any time before the work after the last step was done.
    """

    record: ArrivalRecord
    submitted_ns: int
    aborted: bool = False
    taken_up_ns: int = 0


@dataclass(frozen=True, slots=True)
class EmptyStep:
    """The engine tried to begin a step and had none: early rejection dropped all that could have run."""

    start_ns: int


class RecordedOutputs:
    """An output processor that repeats what a run recorded.

    Args:
        outputs: by request id.
        block_size: tokens of a block where a prefix cache is on, else None.
    """

    def __init__(self, outputs: Mapping[str, RecordedOutput], block_size: int | None) -> None:
        self._outputs = outputs
        self._block_size = block_size
        self._step = 0

    def process(self, batch: ScheduledBatch, result: StepResult | None) -> list[Outcome | None]:
        outcomes: list[Outcome | None] = [self._outcome(request) for request in batch.requests]
        for row in batch.partial_rows:
            outcomes[row] = None
        self._step += 1
        return outcomes

    def _outcome(self, request: Request) -> Outcome:
        output = self._outputs[request.request_id]
        ends = output.last_step == self._step
        num_sampled = 0 if ends and output.reason is FinishReason.ERROR else 1
        hashes: tuple[BlockHash, ...] = ()
        if self._block_size is not None:
            hashes = self._new_hashes(request, output, num_sampled, self._block_size)
        if ends:
            return Outcome(num_sampled, output.reason, hashes)
        return Outcome(num_sampled, None, hashes) if hashes else ONE_TOKEN

    @staticmethod
    def _new_hashes(
        request: Request, output: RecordedOutput, num_sampled: int, block_size: int
    ) -> tuple[BlockHash, ...]:
        known = len(request.block_hashes)
        full_blocks = (request.num_tokens + num_sampled) // block_size
        if output.block_hashes is not None:
            return tuple(output.block_hashes[known:full_blocks])
        return tuple(private_hash(request.request_id, block) for block in range(known, full_blocks))

    def remove(self, request_id: str) -> None:
        """Nothing is kept of a request."""


class RecordedSimulation:
    """One engine on a simulated clock that keeps a recorded run's times.

    Args:
        core: with a `RecordedOutputs`.
        steps: of the run, in order.
        between: what happened between steps, by the number of the step before which it did, in order.
        prompt_hashes: None without a prefix cache.
        on_end: is told of each end.
    """

    def __init__(
        self,
        core: EngineCore,
        steps: Sequence[RecordedStep],
        between: Mapping[int, Sequence[Submission | EmptyStep]],
        prompt_hashes: SubmittedHashes | None = None,
        on_end: OnEnd | None = None,
    ) -> None:
        self._core = core
        self._steps = steps
        self._between = between
        self._prompt_hashes = prompt_hashes
        self._on_end = on_end
        self._env = NanosecondEnvironment(initial_time=0)
        self._env.process(self._run())

    @property
    def now(self) -> int:
        """Simulated time, integer ns."""
        return self._env.now

    def run(self) -> None:
        """Replay all steps, or as many as the scheduler is willing to schedule."""
        self._env.run()

    def _run(self) -> Generator[simpy.Event, Any, None]:
        env, core = self._env, self._core
        for number, step in enumerate(self._steps):
            yield from self._pass_time(number)
            yield from self._wait_until(step.start_ns)
            batch = core.begin_step(env.now)
            self._ended(core.dropped, env.now)
            if batch is None:
                return
            yield env.timeout(step.end_ns - env.now)
            self._ended(core.finish_step(batch, None, env.now), env.now)
            yield env.timeout(step.ready_ns - env.now)
            core.ready(env.now)
        yield from self._pass_time(len(self._steps))

    def _pass_time(self, step: int) -> Generator[simpy.Event, Any, None]:
        """Repeat what happened before a step."""
        for event in self._between.get(step, ()):
            if isinstance(event, EmptyStep):
                yield from self._wait_until(event.start_ns)
                self._core.begin_step(self._env.now)
                self._ended(self._core.dropped, self._env.now)
                continue
            yield from self._wait_until(event.taken_up_ns)
            if event.aborted:
                self._abort(event.record.request_id)
            else:
                self._add(event.record, event.submitted_ns)

    def _wait_until(self, time_ns: int) -> Generator[simpy.Event, Any, None]:
        if time_ns > self._env.now:
            yield self._env.timeout(time_ns - self._env.now)

    def _add(self, record: ArrivalRecord, submitted_ns: int) -> None:
        now = self._env.now
        request = request_from(record)
        if self._prompt_hashes and self._core.scheduler.refusal(request, now) is None:
            request.block_hashes += self._prompt_hashes(record, submitted_ns)
        self._core.add_request(record, request, now, submitted=submitted_ns)

    def _abort(self, request_id: str) -> None:
        request = self._core.scheduler.get(request_id)
        if request is not None:
            self._core.abort(request_id, self._env.now)
            self._ended([request], self._env.now)

    def _ended(self, requests: Sequence[Request], end_ns: int) -> None:
        if self._on_end is not None:
            for request in requests:
                self._on_end(request, end_ns)
