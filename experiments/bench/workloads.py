"""The requests of a suite: lengths and tokens from the seed and the workload's name alone, equal for every engine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Literal

import numpy as np

from experiments.bench.jobs import BenchRequest, Job
from experiments.bench.options import BenchOptions
from experiments.bench.suite import Cohort, OpenLoop
from experiments.bench.toml_table import Range
from experiments.bench.vocabulary import Vocabulary
from tinyllm.errors import InputError
from traces.arrivals import Poisson
from traces.scaling import target_rate
from traces.schema import Provenance, Trace, TraceRow

Kind = Literal["offline", "correctness", "probe", "capacity", "open-loop"]

NUM_PROBES: Final = 8
"""Requests of a stream that are served alone, spread over its prompt lengths."""


@dataclass(frozen=True)
class Workload:
    """Requests that are served together, from an idle engine.

    Attributes:
        name: unique in a run.
        group: the cohort or stream that it belongs to; reports show groups.
        num_warmup: the first so many requests are cut from the figures.
        load: share of capacity at which requests arrive; None where all are there at once.
    """

    name: str
    group: str
    kind: Kind
    requests: tuple[BenchRequest, ...] = field(repr=False)
    ignore_eos: bool = True
    num_warmup: int = 0
    shard: int | None = None
    load: float | None = None

    def job(self) -> Job:
        """What an engine is given."""
        return Job(list(self.requests), self.ignore_eos)

    def sha256(self) -> str:
        """Of everything that an engine is given."""
        return hashlib.sha256(self.job().to_json().encode()).hexdigest()

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt_token_ids) for request in self.requests)

    @property
    def num_output_tokens(self) -> int:
        """Of all requests, where none ends early."""
        return sum(request.max_tokens for request in self.requests)


@dataclass(frozen=True)
class Stream:
    """Requests with arrival times of some rate, which a replay brings to a share of the capacity.

    Attributes:
        rows: arrival times and lengths; the first `num_warmup` are cut from the figures.
        prompts: of each row.
    """

    name: str
    rows: tuple[TraceRow, ...] = field(repr=False)
    prompts: tuple[tuple[int, ...], ...] = field(repr=False)
    num_warmup: int
    loads: tuple[float, ...]

    def at_once(self) -> Workload:
        """The measured requests, all submitted at once: what it takes to serve them is the capacity."""
        rows = self.rows[self.num_warmup :]
        requests = _requests([0] * len(rows), rows, self.prompts[self.num_warmup :])
        return Workload(f"{self.name}/at-once", self.name, "capacity", requests)

    def at_load(self, load: float, capacity: float) -> Workload:
        """All requests, arriving at `load` times the capacity, requests/s, on the average."""
        trace = Trace(iter(self.rows), Provenance(self.name, "table"))
        scaled = list(target_rate(trace, load * capacity).rows)
        first = scaled[0].arrival_ns
        requests = _requests([row.arrival_ns - first for row in scaled], self.rows, self.prompts)
        return Workload(
            f"{self.name}/{load:.2f}", self.name, "open-loop", requests, True, self.num_warmup, None, load
        )

    def probes(self) -> list[Workload]:
        """Single requests from the shortest prompt to the longest, each a workload: nothing else is served."""
        whole = self.at_once().requests
        by_length = sorted(whole, key=lambda request: (len(request.prompt_token_ids), request.request_id))
        places = np.unique(np.linspace(0, len(by_length) - 1, NUM_PROBES).round().astype(int))
        return [
            Workload(f"{self.name}/alone-{number}", self.name, "probe", (by_length[place],))
            for number, place in enumerate(places, start=1)
        ]


def cohort_workloads(cohort: Cohort, options: BenchOptions, vocabulary: Vocabulary) -> list[Workload]:
    """The shards of a cohort. Raises `InputError` where a request does not fit the model's context."""
    prompt, output = options.scaled(cohort.prompt_tokens), options.scaled(cohort.output_tokens)
    _check_context(cohort.name, prompt, output, vocabulary.max_model_len)
    workloads = []
    for shard in range(1, options.num_shards(cohort.shards) + 1):
        name = f"{cohort.name}/{shard}" if cohort.shards > 1 else cohort.name
        rng = stream_of_random_numbers(options.seed, name)
        count = options.at_most(cohort.requests)
        rows = tuple(
            TraceRow(n, 0, *lengths) for n, lengths in enumerate(_lengths(rng, prompt, output, count))
        )
        tokens = vocabulary.random if cohort.ignore_eos else vocabulary.text
        requests = _requests([0] * count, rows, tokens(rng, rows))
        kind: Kind = "offline" if cohort.ignore_eos else "correctness"
        workloads.append(Workload(name, cohort.name, kind, requests, cohort.ignore_eos, shard=shard))
    return workloads


def open_loop_stream(loop: OpenLoop, options: BenchOptions, vocabulary: Vocabulary) -> Stream:
    """Poisson arrivals, one a second. Raises `InputError` where a request does not fit the model's context."""
    prompt, output = options.scaled(loop.prompt_tokens), options.scaled(loop.output_tokens)
    _check_context(loop.name, prompt, output, vocabulary.max_model_len)
    rng = stream_of_random_numbers(options.seed, loop.name)
    measured = max(2, options.at_most(loop.requests))
    num_warmup = scaled_warmup(loop.warmup, measured, loop.requests)
    count = num_warmup + measured
    arrivals = Poisson().sample(rng, count, 1.0).tolist()
    lengths = _lengths(rng, prompt, output, count)
    rows = tuple(TraceRow(n, at, *lengths[n]) for n, at in enumerate(arrivals))
    return Stream(loop.name, rows, vocabulary.random(rng, rows), num_warmup, loop.loads)


def scaled_warmup(warmup: int, measured: int, of: int) -> int:
    """Warm-up requests where `measured` are left of the suite's `of`: the same share, rounded up."""
    return -int(-Fraction(warmup * measured, of) // 1)


def stream_of_random_numbers(seed: int, name: str) -> np.random.Generator:
    """A generator of its own for each workload: adding one to a suite changes no other."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))


def _lengths(rng: np.random.Generator, prompt: Range, output: Range, count: int) -> list[tuple[int, int]]:
    prompts = rng.integers(prompt.low, prompt.high + 1, count).tolist()
    outputs = rng.integers(output.low, output.high + 1, count).tolist()
    return list(zip(prompts, outputs, strict=True))


def _requests(
    arrivals_ns: Sequence[int], rows: Sequence[TraceRow], prompts: Sequence[Sequence[int]]
) -> tuple[BenchRequest, ...]:
    return tuple(
        BenchRequest(f"r{row.source_row}", list(prompt), max(1, row.output_tokens), arrival / 1e9)
        for arrival, row, prompt in zip(arrivals_ns, rows, prompts, strict=True)
    )


def _check_context(name: str, prompt: Range, output: Range, max_model_len: int) -> None:
    if prompt.high + output.high > max_model_len:
        raise InputError(
            f"workload {name}: {prompt.high} prompt and {output.high} output tokens do not fit the model's "
            f"context of {max_model_len}; give a smaller --length-scale"
        )
