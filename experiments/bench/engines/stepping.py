"""Engines that are driven step by step: requests go in between two steps, tokens are there when a step ends."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from experiments.bench.engines.arrivals import Clock, Inbox
from experiments.bench.engines.base import Engine
from experiments.bench.jobs import BenchRequest, Served


class StepOutput(NamedTuple):
    """What a step did for one request.

    Attributes:
        token_ids: those that are new.
        finish_reason: None while it goes on.
        error: why it failed.
    """

    request_id: str
    token_ids: Sequence[int]
    finish_reason: str | None
    error: str | None = None


def step_output(
    request_id: str, token_ids: Sequence[int], finish_reason: str | None, error: str | None = None
) -> StepOutput:
    """The same, from an engine's own words: whoever ended neither by length nor by a stop has failed."""
    if finish_reason in (None, "length", "stop"):
        return StepOutput(request_id, token_ids, finish_reason, error)
    return StepOutput(request_id, token_ids, None, error or f"ended by {finish_reason}")


@dataclass
class Progress:
    """What has become of a request so far."""

    submitted_s: float
    first_scheduled_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None

    def add(self, output: StepOutput, now: float) -> None:
        """Take in what a step that ended at `now` did."""
        self.token_ids += output.token_ids
        self.token_times_s += [now] * len(output.token_ids)
        self.finish_reason, self.error = output.finish_reason, output.error

    def served(self, request_id: str) -> Served:
        """The same as a record."""
        return Served(request_id, **vars(self))


class StepEngine(Engine):
    """An engine with a step that may be called again and again, from one thread."""

    @abstractmethod
    def add(self, request: BenchRequest, ignore_eos: bool) -> str | None:
        """Let a request wait; None, or the reason for which it is refused."""

    @abstractmethod
    def step(self) -> list[StepOutput]:
        """Run one step; what it did for each request that has a new token or has ended.

        Raises:
            IncompleteRunError: nothing can run any more.
        """

    @abstractmethod
    def running(self) -> Iterable[str]:
        """Ids of the requests that have been scheduled and have not ended."""

    def serve(self, requests: Sequence[BenchRequest], ignore_eos: bool) -> list[Served]:
        clock = Clock()
        inbox = Inbox(requests, clock)
        progress: dict[str, Progress] = {}
        live: set[str] = set()
        try:
            while inbox or live:
                for request, submitted in inbox.take(wait=not live):
                    error = self.add(request, ignore_eos)
                    progress[request.request_id] = Progress(submitted, error=error)
                    if error is None:
                        live.add(request.request_id)
                if live:
                    self._run_step(clock, progress, live)
        finally:
            inbox.close()
        return [one.served(request_id) for request_id, one in progress.items()]

    def _run_step(self, clock: Clock, progress: dict[str, Progress], live: set[str]) -> None:
        start = clock()
        outputs = self.step()
        end = clock()
        for request_id in [*self.running(), *(output.request_id for output in outputs)]:
            if progress[request_id].first_scheduled_s is None:
                progress[request_id].first_scheduled_s = start
        for output in outputs:
            progress[output.request_id].add(output, end)
            if output.finish_reason is not None or output.error is not None:
                live.remove(output.request_id)
