"""A fake engine with the face of `EngineProcess`, and options that run a tiny suite through it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from experiments.bench.bench import BenchResult, bench
from experiments.bench.ceilings import Measured
from experiments.bench.jobs import BenchRequest, Job, JobResult, Memory, Served
from experiments.bench.options import BenchOptions

SUITE = """
about = "A tiny suite"
repeats = 2

[[offline]]
name = "pair"
prompt_tokens = [4, 9]
output_tokens = 6
requests = 2
shards = 2

[[correctness]]
name = "correctness"
prompt_tokens = [4, 9]
output_tokens = 5
requests = 3

[[open_loop]]
name = "poisson"
prompt_tokens = [4, 30]
output_tokens = [2, 8]
requests = 10
warmup = 2
loads = [0.5, 0.9]
"""


@dataclass
class FakeEngine:
    """Serves one request after the other: `speed` tokens a second, the prompt's at ten times that.

    `spoil` is given each result and may plant a fault; `fail_at` is the number of the job that raises `failure`.
    """

    name: str
    speed: float = 100.0
    spoil: Callable[[Job, JobResult], JobResult] | None = None
    fail_at: int | None = None
    failure: BaseException | None = None
    jobs: list[Job] = field(default_factory=list)

    @property
    def info(self) -> Mapping[str, Any]:
        return {"engine": self.name, "version": "0.fake", "threads": 2, "dtype": "float32"}

    def run(self, job: Job) -> JobResult:
        self.jobs.append(job)
        if self.failure is not None and len(self.jobs) == self.fail_at:
            raise self.failure
        now, served = 0.0, []
        for request in job.requests:
            now = max(now, request.arrival_s)
            served.append(self._serve(request, now))
            now = served[-1].token_times_s[-1]
        result = JobResult(served, Memory(300_000_000, 10_000_000, 5_000_000, 400_000_000))
        return self.spoil(job, result) if self.spoil else result

    def _serve(self, request: BenchRequest, start: float) -> Served:
        first = start + len(request.prompt_token_ids) / (10 * self.speed)
        times = [first + n / self.speed for n in range(request.max_tokens)]
        tokens = [(sum(request.prompt_token_ids) + 7 * n) % 100 for n in range(request.max_tokens)]
        return Served(request.request_id, request.arrival_s, start, times, tokens, "length")


@dataclass
class Bench:
    """`run(...)`: a run with fake engines, which tests find in `engines`."""

    suite: Path
    model: Path
    out: Path
    engines: dict[str, FakeEngine] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def add(self, name: str, **knobs: Any) -> FakeEngine:
        self.engines[name] = FakeEngine(name, **knobs)
        return self.engines[name]

    def options(self, **changes: Any) -> BenchOptions:
        backend = changes.pop("backend", "tinyllm,transformers-static")
        return BenchOptions(str(self.suite), self.model, self.out, backend=backend, **changes)

    def run(self, **changes: Any) -> BenchResult:
        return bench(self.options(**changes), self.order.append, self._open, measuring)

    @contextmanager
    def _open(self, name: str) -> Iterator[FakeEngine]:
        engine = self.engines.get(name) or self.add(name)
        if isinstance(engine.failure, Exception) and engine.fail_at == 0:
            raise engine.failure
        yield engine

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        return found


@contextmanager
def measuring(shape: object) -> Iterator[Callable[[], Measured]]:
    """Ceilings of a machine that nobody has."""
    yield lambda: Measured(1.0, "a product", 2.0, 2)


@pytest.fixture
def fake_bench(tmp_path: Path, tiny_llama: Any) -> Bench:
    suite = tmp_path / "tiny.toml"
    suite.write_text(SUITE)
    return Bench(suite, tiny_llama.directory, tmp_path / "report")
