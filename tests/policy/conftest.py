from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.policy import (
    Request,
    ScheduledBatch,
    Scheduler,
    SchedulerConfig,
    SchedulingPolicy,
    check_integrity,
    make_policy,
)

# A machine under load is no failure: no test here is about time.
settings.register_profile("policy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("policy")


class Step(NamedTuple):
    """What one step did, by request id."""

    rows: list[tuple[str, int]]
    admitted: list[str]
    preempted: list[str]
    finished: list[str]


class Engine:
    """A scheduler and hidden output lengths, driven step by step; step n begins at n ms."""

    def __init__(self, policy: str | SchedulingPolicy = "fcfs", **config: Any) -> None:
        defaults: dict[str, Any] = {"block_size": 16, "num_gpu_blocks": 1_000}
        self.config = SchedulerConfig(**(defaults | config))
        self.policy = make_policy(policy) if isinstance(policy, str) else policy
        self.scheduler = Scheduler(self.config, self.policy)
        caching = self.config.enable_prefix_caching
        self.outputs = TargetLengthProcessor(
            self.config.max_model_len, self.config.block_size if caching else None
        )
        self.requests: dict[str, Request] = {}
        self.now = 0

    def add(
        self, request_id: str, prompt: int, output: int = 1, *, max_tokens: int | None = None, **fields: Any
    ) -> str | None:
        """Submit a request that declares `max_tokens` and, what the policy does not see, ends after `output`."""
        request = Request(
            request_id, prompt, output if max_tokens is None else max_tokens, self.now, **fields
        )
        reason = self.scheduler.add_request(request, self.now)
        if reason is None:
            self.requests[request_id] = request
            self.outputs.add(request, output)
        return reason

    def abort(self, request_id: str) -> None:
        self.scheduler.abort(request_id, self.now)
        self.outputs.remove(request_id)

    def schedule(self) -> ScheduledBatch | None:
        """Begin a step; `finish` ends it."""
        return self.scheduler.schedule(self.now)

    def finish(self, batch: ScheduledBatch) -> list[str]:
        self.now += 1_000_000
        outcomes = self.outputs.process(batch, None)
        ended = self.scheduler.update_from_output(batch, outcomes, self.now)
        for request in ended:
            self.outputs.remove(request.request_id)
        check_integrity(self.scheduler)
        return [request.request_id for request in ended]

    def step(self) -> Step:
        """A whole step; all its lists are empty if nothing can run."""
        batch = self.schedule()
        if batch is None:
            check_integrity(self.scheduler)
            return Step([], [], [], [])
        rows = [request.request_id for request in batch.requests]
        return Step(
            list(zip(rows, batch.num_scheduled_tokens, strict=True)),
            [request.request_id for request in batch.admitted],
            [request.request_id for request in batch.preempted],
            self.finish(batch),
        )

    def run(self, most_steps: int = 10_000) -> list[Step]:
        """Step until every request has ended."""
        steps: list[Step] = []
        while self.scheduler.num_unfinished:
            steps.append(self.step())
            assert steps[-1].rows, "stalled"
            assert len(steps) <= most_steps, "no end in sight"
        return steps

    @property
    def running(self) -> list[str]:
        return [request.request_id for request in self.scheduler.running]

    @property
    def free_blocks(self) -> int:
        return self.scheduler.kv.pool.num_free


@pytest.fixture(scope="session")
def engine() -> type[Engine]:
    """The class `Engine`: tests make engines of the sizes they need."""
    return Engine
