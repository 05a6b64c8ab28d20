"""A scheduler with hidden output lengths, driven a step at a time and checked after each."""

from __future__ import annotations

from typing import Any, NamedTuple

from tinyllm.conformance.limits import check_batch, require
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

STEP_NS = 1_000_000


class Step(NamedTuple):
    """What one step did, by request id; all lists are empty where nothing could run."""

    rows: list[tuple[str, int]]
    admitted: list[str]
    preempted: list[str]
    finished: list[str]


class Stepper:
    """Drives a policy; step n begins at n ms.

    Args:
        policy: a policy object, or the name of one.
        config: fields of SchedulerConfig.

    Attributes:
        requests: every request that was accepted, by id.
        steps: what each step did.
        now: ns since the start.
    """

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
        self.steps: list[Step] = []
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
        """End a request, if it has not ended."""
        self.scheduler.abort(request_id, self.now)
        self.outputs.remove(request_id)

    def schedule(self) -> ScheduledBatch | None:
        """Begin a step; `finish` ends it."""
        for request in self.scheduler.drop_expired(self.now):
            self.outputs.remove(request.request_id)
        batch = self.scheduler.schedule(self.now)
        if batch is not None:
            check_batch(self.scheduler, batch)
        return batch

    def finish(self, batch: ScheduledBatch) -> list[str]:
        """End a step; return the ids of the requests that ended with it."""
        self.now += STEP_NS
        outcomes = self.outputs.process(batch, None)
        ended = self.scheduler.update_from_output(batch, outcomes, self.now)
        for request in ended:
            self.outputs.remove(request.request_id)
        check_integrity(self.scheduler)
        return [request.request_id for request in ended]

    def step(self) -> Step:
        """A whole step.

        Raises:
            ViolationError, IntegrityError: a batch or the state after it is wrong.
        """
        residents = sorted(self.running)
        batch = self.schedule()
        if batch is None:
            check_integrity(self.scheduler)
            require(sorted(self.running) == residents, "a step without rows changed who runs")
            self.now += STEP_NS
            self.steps.append(Step([], [], [], []))
        else:
            rows = [request.request_id for request in batch.requests]
            step = Step(
                list(zip(rows, batch.num_scheduled_tokens, strict=True)),
                [request.request_id for request in batch.admitted],
                [request.request_id for request in batch.preempted],
                self.finish(batch),
            )
            self.steps.append(step)
        return self.steps[-1]

    def run(self, most_steps: int = 10_000) -> list[Step]:
        """Step until every request has ended.

        Raises:
            ViolationError: nothing can run although requests are left, or they have not ended after `most_steps`.
        """
        steps: list[Step] = []
        while self.scheduler.num_unfinished:
            steps.append(self.step())
            require(bool(steps[-1].rows), "stalled")
            require(len(steps) <= most_steps, "no end in sight")
        return steps

    @property
    def running(self) -> list[str]:
        """Ids of the residents, in the scheduler's order."""
        return [request.request_id for request in self.scheduler.running]

    @property
    def free_blocks(self) -> int:
        """KV blocks that nobody holds."""
        return self.scheduler.kv.pool.num_free
