"""`tinyllm bench`: a suite, planned, run, judged and reported."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.bench.ceilings import MeasureCeilings, measuring_child
from experiments.bench.directory import ReportDirectory, Status, check_free
from experiments.bench.environment import describe_environment
from experiments.bench.floor import Ceilings
from experiments.bench.gates import Gate
from experiments.bench.memory import memory_row, over_limit
from experiments.bench.options import BenchOptions
from experiments.bench.plan import BLOCK_SIZE, Plan, make_plan
from experiments.bench.raw import read_raw
from experiments.bench.report import render
from experiments.bench.reproduction import command_line, commands
from experiments.bench.session import OpenEngine, Progress, RunningEngine, Session
from experiments.bench.summary import OURS, Summary, summarize
from sim.shapes import ModelShape
from tinyllm.errors import IncompleteRunError, TinyLLMError

Measuring = Callable[[ModelShape], AbstractContextManager[MeasureCeilings]]


@dataclass(frozen=True)
class BenchResult:
    """Where the report is, and what the gates found."""

    directory: Path
    gates: list[Gate]

    @property
    def ok(self) -> bool:
        return all(gate.ok for gate in self.gates)


def bench(
    options: BenchOptions,
    progress: Progress,
    open_engine: OpenEngine | None = None,
    measuring: Measuring = measuring_child,
) -> BenchResult:
    """Run a suite and write its report, also where it is cut short or a gate fails.

    Args:
        open_engine: how an engine is started; by itself in a process of its own.

    Raises:
        InputError: something is wrong with the options, the suite, the model or an engine's environment.
        IncompleteRunError: interrupted, or an engine ended; the report covers what was complete.
    """
    plan = make_plan(options)
    check_free(options.out, force=options.force)
    session = Session(plan, progress)
    opener = open_engine or process_opener(plan)
    try:
        with measuring(plan.shape) as measure, ExitStack() as stack:
            engines = session.start(opener, stack)
            session.claim(ReportDirectory(options.out, _manifest(plan), force=options.force))
            session.run(engines, measure)
    except KeyboardInterrupt:
        reason = f"interrupted after {session.num_runs} runs"
        _close(session, "interrupted", reason)
        raise IncompleteRunError(f"bench: {reason}") from None
    except TinyLLMError as error:
        _close(session, "failed", str(error))
        raise
    return BenchResult(options.out, _close(session, "complete", None))


def _manifest(plan: Plan) -> dict[str, Any]:
    return {"suite": plan.suite.name, "command": command_line(plan.options), "seed": plan.options.seed}


def _close(session: Session, status: Status, reason: str | None) -> list[Gate]:
    """Report what is complete; nothing where the run never began."""
    if session.directory is None:
        return []
    gates = write_report(session, session.directory, status, reason)
    session.directory.finish(status, reason)
    return gates


def process_opener(plan: Plan) -> OpenEngine:
    """Starts engines in processes of their own, each with the same options."""
    from experiments.bench.engines.process import EngineProcess

    chosen = engine_options(plan)

    def open_engine(name: str) -> AbstractContextManager[RunningEngine]:
        return EngineProcess(name, plan.options.model, chosen)

    return open_engine


def engine_options(plan: Plan) -> dict[str, Any]:
    """What every engine is told."""
    python = plan.options.vllm_python
    return {
        "dtype": plan.options.dtype,
        "max_model_len": plan.max_model_len,
        "num_gpu_blocks": plan.num_gpu_blocks,
        "block_size": BLOCK_SIZE,
        **({} if python is None else {"vllm_python": str(python)}),
    }


def write_report(
    session: Session, directory: ReportDirectory, status: Status, reason: str | None
) -> list[Gate]:
    """Write all files but the manifest and the raw rows, which are there."""
    plan, gates = session.plan, session.gates
    machine = session.machine()
    summary = summarize(read_raw(directory.path), plan, machine)
    ours = plan.families.get(OURS, ())
    memory = [memory_row(engine, each, engine in ours) for engine, each in session.memory.items()]
    _judge(session, summary.rows, memory)
    facts = _facts(session, machine, summary, memory) | {"status": status, "reason": reason}
    described = describe_environment(session.infos, plan.options.model)
    directory.write_json("environment.json", described)
    directory.write_json("summary.json", facts)
    pd.DataFrame(summary.rows).to_parquet(directory.path / "summary.parquet", index=False)
    directory.write_text("commands.md", commands(plan, described, session.hashes))
    directory.write_text("report.md", render(facts, described, gates.all()))
    return gates.all()


def _facts(
    session: Session, machine: Ceilings | None, summary: Summary, memory: list[dict[str, Any]]
) -> dict[str, Any]:
    """`summary.json`, but for how the run ended."""
    plan = session.plan
    return {
        "suite": plan.suite.name,
        "about": plan.suite.about,
        "runs": session.run_counts(),
        "repeats": plan.repeats,
        "length_scale": plan.options.length_scale,
        "seed": plan.options.seed,
        "dtype": plan.options.dtype,
        "reference": next(iter(session.infos), None),
        "left_out": session.left_out,
        "ceilings": None
        if machine is None
        else {"gflops": machine.flops / 1e9, "read_gb_s": machine.bytes / 1e9}
        | {"measurements": len(session.ceilings), "all": [vars(each) for each in session.ceilings]},
        "trace": None if plan.trace is None else {"label": plan.trace.label, **plan.trace.provenance},
        "capacities": session.capacities,
        "limit_factors": vars(plan.suite.limits),
        "limits": summary.limits,
        "gates": [vars(gate) | {"ok": gate.ok} for gate in session.gates.all()],
        "memory": memory,
        "ratios": summary.ratios,
        "workloads": session.hashes,
        "rows": summary.rows,
    }


def _judge(session: Session, rows: list[dict[str, Any]], memory: list[dict[str, Any]]) -> None:
    gates = session.gates
    gates.check_complete(session.missing())
    gates.check_percentiles(rows)
    gates.check_agreement()
    for row in memory:
        if row["ok"] is not None:
            gates.gate("tinyllm keeps to its memory").check(row["engine"], over_limit(row))
