"""`make demo`: one generated trace under four schedulers, compared in the terminal and on one page; then a few
requests on a real model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from analysis.report import write_report
from analysis.summary import summarize
from analysis.table import labels, print_summaries, print_tenants
from experiments.demo_real import real_part
from experiments.options import ReplayOptions
from experiments.progress import terminal_progress
from experiments.replay import replay
from tinyllm.engine.record.reader import Run, read_run
from tinyllm.errors import InputError, TinyLLMError
from traces.export import write_trace
from traces.generate import generate

PRESET = "burstgpt-like"
REQUESTS = 4_000
RATE = 44.0
SEED = 1
GPU, MODEL_SHAPE, MAX_NUM_SEQS = "h100", "llama-3.1-8b", 64
"""With 64 seats this device serves about 28 of these requests a second: a queue grows and is worked off,
and the order of the queue is all that differs between the runs."""


class Contender(NamedTuple):
    """A run of the demo: its folder, and what schedules it."""

    name: str
    policy: str
    predictor: str = "none"


CONTENDERS = (
    Contender("fcfs", "fcfs"),
    Contender("srpt-perfect", "srpt", "perfect"),
    Contender("srpt-noisy", "srpt", "lognormal:1"),
    Contender("vtc", "vtc"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for trace, runs, report")
    out = parser.parse_args(arguments).out
    try:
        trace = make_trace(out)
        compare(simulate(trace, out), out / "report.html")
        real_part(trace, out, Path("models"), SEED)
    except TinyLLMError as error:
        print(f"demo: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def make_trace(out: Path) -> Path:
    """Generate the trace of the demo; the same rows each time."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror or error}; choose another folder") from None
    trace = generate(PRESET, requests=REQUESTS, rate=RATE, seed=SEED)
    path = write_trace(trace, out / "trace.parquet", force=True)
    print(f"Trace: {REQUESTS:,} {PRESET} requests at {RATE:g}/s, seed {SEED}: {path}")
    return path


def simulate(trace: Path, out: Path) -> list[Run]:
    """Replay the trace under each contender on the simulated device, replacing what the last demo left."""
    print(f"Device: {MODEL_SHAPE} on a simulated {GPU}, {MAX_NUM_SEQS} seats")
    runs = []
    for name, policy, predictor in CONTENDERS:
        options = ReplayOptions(
            trace=trace,
            out=out / name,
            policy=policy,
            predictor=predictor,
            gpu=GPU,
            model_shape=MODEL_SHAPE,
            max_num_seqs=MAX_NUM_SEQS,
            seed=SEED,
            force=True,
        )
        result = replay(options, terminal_progress)
        run = read_run(result.directory)
        print(
            f"  {name:12} {run.steps['end'].max():.0f} s of serving in {result.run_time_s:.1f} s: "
            f"{result.num_steps:,} steps, log in {result.directory}"
        )
        runs.append(run)
    return runs


def compare(runs: Sequence[Run], report: Path) -> None:
    """Print the comparison, also by tenant, and write the page."""
    summaries = [summarize(run) for run in runs]
    print()
    print_summaries(summaries, labels(runs))
    print()
    print_tenants(runs)
    print()
    print(f"Report: {write_report(runs, report, summaries=summaries)}")


if __name__ == "__main__":
    sys.exit(main())
