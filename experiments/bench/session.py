"""Running a plan: every engine alive in its own process, one at work at a time, what is complete kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Final, Protocol

from experiments.bench.ceilings import MeasureCeilings, Measured
from experiments.bench.directory import ReportDirectory
from experiments.bench.floor import Ceilings
from experiments.bench.gates import Gates
from experiments.bench.jobs import BenchRequest, Job, JobResult, Memory
from experiments.bench.plan import Item, Plan, Turn
from experiments.bench.raw import RunKey, write_run
from experiments.bench.workloads import Stream, Workload
from tinyllm.errors import IncompleteRunError, InputError

WARMUP_BATCHES: Final = (1, 8, 64)
WARMUP_PROMPT_TOKENS: Final = 32
WARMUP_OUTPUT_TOKENS: Final = 4


class RunningEngine(Protocol):
    """An engine that is ready for jobs, as `EngineProcess` is."""

    @property
    def info(self) -> Mapping[str, Any]: ...

    def run(self, job: Job) -> JobResult: ...


OpenEngine = Callable[[str], AbstractContextManager[RunningEngine]]
"""Starts an engine by name, and loads the model."""

Run = tuple[str, str, int]
"""Engine, workload and repeat."""

Progress = Callable[[str], None]
"""Told what begins now."""


@dataclass
class Session:
    """The state of a run, complete at its end or as far as it came.

    Attributes:
        directory: of the report; None until `claim`, so that what can't start destroys nothing.
        infos: what each engine says of itself.
        left_out: engines that could not be started, with the reason.
        memory: of each engine, the latest.
        ceilings: all measurements, in order.
        capacities: requests/s of each stream, on the first engine.
        hashes: sha256 of each workload.
        done: runs that are complete; `num_runs` counts single requests on the unloaded engine, too.
    """

    plan: Plan
    progress: Progress
    directory: ReportDirectory | None = None
    gates: Gates = field(init=False)
    infos: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    memory: dict[str, Memory] = field(default_factory=dict)
    ceilings: list[Measured] = field(default_factory=list)
    capacities: dict[str, float] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    done: set[Run] = field(default_factory=set)
    num_runs: int = 0

    def __post_init__(self) -> None:
        self.gates = Gates(self.plan.suite.max_lag_share)

    def machine(self) -> Ceilings | None:
        """The medians of what was measured; None before the first."""
        if not self.ceilings:
            return None
        gflops, read = (
            median(getattr(each, name) for each in self.ceilings) for name in ("gflops", "read_gb_s")
        )
        return Ceilings(gflops * 1e9, read * 1e9)

    def start(self, open_engine: OpenEngine, stack: ExitStack) -> dict[str, RunningEngine]:
        """Start and warm up every engine that can be; they end with `stack`.

        Raises:
            InputError: none of a family's engines could be started.
        """
        engines: dict[str, RunningEngine] = {}
        for family, modes in self.plan.families.items():
            refusals = []
            for name in modes:
                self.progress(f"starting {name}")
                try:
                    engines[name] = stack.enter_context(open_engine(name))
                    self.infos[name] = dict(engines[name].info)
                except InputError as error:
                    self.left_out[name] = str(error)
                    refusals.append(error)
            if len(refusals) == len(modes):
                raise InputError(f"--backend {family}: {refusals[0]}")
        for name, engine in engines.items():
            self.progress(f"warming up {name}")
            for job in warmup_jobs(self.plan):
                engine.run(job)
        return engines

    def claim(self, directory: ReportDirectory) -> None:
        """Take the place of the report."""
        self.directory = directory

    def run(self, engines: Mapping[str, RunningEngine], measure: MeasureCeilings) -> None:
        """All turns of the plan, after `start` and `claim`.

        Raises:
            IncompleteRunError: an engine ended; what was complete before is kept.
        """
        for turn in self.plan.turns(list(engines)):
            self._take_turn(turn, engines, measure)
        self.ceilings.append(measure())

    def missing(self) -> list[str]:
        """What the plan asks of the engines that could be started, and was not done."""
        planned = self._planned()
        return [
            f"{engine}, {name}, repeat {repeat + 1}"
            for engine, name, repeat in planned
            if (engine, name, repeat) not in self.done
        ]

    def run_counts(self) -> dict[str, int]:
        """How many runs were planned and done, and how many of them replays of arrivals."""
        planned = self._planned()
        replays = [run for run, item in planned.items() if item.workload is None]
        return {
            "planned": len(planned),
            "done": sum(run in self.done for run in planned),
            "replays_planned": len(replays),
            "replays_done": sum(run in self.done for run in replays),
        }

    def _planned(self) -> dict[Run, Item]:
        return {
            (engine, turn.item.name, turn.repeat): turn.item
            for turn in self.plan.turns(list(self.infos))
            for engine in turn.engines
        }

    def _take_turn(self, turn: Turn, engines: Mapping[str, RunningEngine], measure: MeasureCeilings) -> None:
        self.progress(
            f"repeat {turn.repeat + 1} of {self.plan.repeats}, {turn.item.name}: measuring the machine"
        )
        self.ceilings.append(measure())
        workload = turn.item.resolve(self.capacities)
        for place, name in enumerate(turn.engines):
            self.progress(f"repeat {turn.repeat + 1} of {self.plan.repeats}, {workload.name}: {name}")
            self._serve(engines[name], RunKey(self.num_runs, turn.repeat, place, name), workload)
        stream = next((each for each in self.plan.streams if each.name == workload.group), None)
        if stream is not None and workload.kind == "capacity" and turn.repeat == 0:
            self._probe(stream, engines)

    def _serve(self, engine: RunningEngine, key: RunKey, workload: Workload) -> None:
        assert self.directory is not None, "claim a directory first"
        result = engine.run(workload.job())
        write_run(self.directory.path, key, workload, result)
        self.num_runs += 1
        self.done.add((key.engine, workload.name, key.repeat))
        self.memory[key.engine] = result.memory
        self.hashes.setdefault(workload.name, workload.sha256())
        self.gates.check_run(key.engine, key.repeat, workload, result.served)
        run = {"run": key.run, "engine": key.engine, "workload": workload.name, "repeat": key.repeat}
        self.directory.note_run(run | {"place": key.place, "details": result.details})
        if workload.kind == "capacity" and key.repeat == 0 and key.engine == self._reference:
            self.capacities[workload.group] = _capacity(workload, result)

    def _probe(self, stream: Stream, engines: Mapping[str, RunningEngine]) -> None:
        """Single requests on the first engine: limits are multiples of what they take."""
        for probe in stream.probes():
            self.progress(f"{probe.name}: {self._reference}")
            key = RunKey(self.num_runs, 0, 0, self._reference)
            self._serve(engines[self._reference], key, probe)

    @property
    def _reference(self) -> str:
        """The first engine that was named and could be started."""
        return next(iter(self.infos))


def _capacity(workload: Workload, result: JobResult) -> float:
    """Completed requests a second of a workload that was submitted at once."""
    ends = [one.token_times_s[-1] for one in result.served if one.error is None and one.token_times_s]
    if not ends or max(ends) <= 0:
        raise IncompleteRunError(f"workload {workload.name}: no request completed, so there is no capacity")
    return len(ends) / max(ends)


def warmup_jobs(plan: Plan) -> Iterator[Job]:
    """Small batches of the sizes that the plan has, and its longest prompt: kernels are compiled, pages are touched."""
    known = [item.workload for item in plan.items if item.workload is not None]
    requests = max((workload.requests for workload in known), key=len)
    for size in sorted({min(size, len(requests)) for size in WARMUP_BATCHES}):
        yield Job([_cut(request, WARMUP_PROMPT_TOKENS) for request in requests[:size]])
    every = [request for workload in known for request in workload.requests]
    longest = max(every, key=lambda request: len(request.prompt_token_ids))
    yield Job([_cut(longest, len(longest.prompt_token_ids))])


def _cut(request: BenchRequest, prompt_tokens: int) -> BenchRequest:
    prompt = request.prompt_token_ids[:prompt_tokens]
    return replace(request, prompt_token_ids=prompt, max_tokens=min(request.max_tokens, WARMUP_OUTPUT_TOKENS))
