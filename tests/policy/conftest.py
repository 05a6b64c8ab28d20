from __future__ import annotations

from collections.abc import Callable
from random import Random
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
        residents = sorted(self.running)
        batch = self.schedule()
        if batch is None:
            check_integrity(self.scheduler)
            assert sorted(self.running) == residents, "a step without rows changed who runs"
            self.now += 1_000_000
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


class Arrival(NamedTuple):
    """A request of a random world."""

    name: str
    prompt: int
    output: int
    fields: dict[str, Any]


class World(NamedTuple):
    """A random configuration, and what arrives and is aborted before each step."""

    config: dict[str, Any]
    arrivals: list[list[Arrival]]
    aborts: list[list[str]]

    @classmethod
    def draw(cls, rng: Random, *, num_steps: int = 40, may_preempt: bool = True) -> World:
        """A world of tiny pools and budgets, in which everything happens often."""
        config: dict[str, Any] = {
            "block_size": rng.choice([1, 2, 4]),
            "num_gpu_blocks": rng.randint(4, 16),
            "max_num_seqs": rng.randint(1, 6),
            "max_num_batched_tokens": rng.randint(1, rng.choice([6, 40])),
            "long_prefill_token_threshold": rng.choice([0, 0, 1, 3, 8]),
            "enable_chunked_prefill": rng.random() < 0.8,
            "enable_prefix_caching": rng.random() < 0.5,
            "admission": rng.choice(["first-chunk", "full-prompt", "reserve-output"]),
            "watermark": rng.choice([0.0, 0.0, 0.1, 0.3]),
            "max_model_len": rng.choice([None, 30]),
        }
        if config["admission"] == "reserve-output" and not may_preempt:
            config["preemption"] = "never"
        arrivals: list[list[Arrival]] = []
        aborts: list[list[str]] = []
        names: list[str] = []
        for _ in range(num_steps):
            count = rng.choice([0, 0, 0, 1, 1, 3])
            arrivals.append([_draw_arrival(rng, f"r{len(names) + i}", config) for i in range(count)])
            names += [arrival.name for arrival in arrivals[-1]]
            aborts.append([rng.choice(names)] if names and rng.random() < 0.05 else [])
        return cls(config, arrivals, aborts)

    def outputs_redrawn(self, rng: Random) -> World:
        """The same for every policy to see, with other hidden lengths."""
        redrawn = [
            [a._replace(output=rng.randint(1, a.fields["max_tokens"])) for a in group]
            for group in self.arrivals
        ]
        return self._replace(arrivals=redrawn)

    def run(
        self, policy: str | SchedulingPolicy, before_step: Callable[[Engine], None] | None = None
    ) -> Engine:
        """Run through all arrivals and then until nothing is left; every step is kept in `engine.steps`."""
        engine = Engine(policy, **self.config)
        for arrivals, aborts in zip(self.arrivals, self.aborts, strict=True):
            for arrival in arrivals:
                engine.add(arrival.name, arrival.prompt, arrival.output, **arrival.fields)
            for name in aborts:
                engine.abort(name)
            if before_step is not None:
                before_step(engine)
            engine.step()
        return engine


def _draw_arrival(rng: Random, name: str, config: dict[str, Any]) -> Arrival:
    # Most fit, so that they compete for the pool; a few are refused.
    room = config["num_gpu_blocks"] * config["block_size"]
    if not config["enable_chunked_prefill"]:
        room = min(room, config["max_num_batched_tokens"])
    prompt, output = rng.randint(1, max(1, room // 2)), rng.randint(1, max(1, room // 2))
    content = "".join(rng.choice("ab") for _ in range(prompt // config["block_size"]))
    fields = {
        "max_tokens": output + rng.choice([0, 0, 4]),
        "priority": rng.randint(0, 3),
        "tenant": rng.choice([None, "x", "y"]),
        "predicted_output_tokens": rng.choice([None, 1, 2, 3, 4, 5, 12]),
        # Chained: the hash of a block is all the content up to its end.
        "block_hashes": [content[: i + 1] for i in range(len(content))]
        if config["enable_prefix_caching"]
        else [],
    }
    return Arrival(name, prompt, output, fields)


@pytest.fixture(scope="session")
def engine() -> type[Engine]:
    """The class `Engine`: tests make engines of the sizes they need."""
    return Engine


@pytest.fixture(scope="session")
def world() -> type[World]:
    """The class `World`: tests draw random worlds."""
    return World
