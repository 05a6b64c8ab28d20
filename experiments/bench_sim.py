"""`make bench`: how fast the simulation is, under the yardstick and with the log on.

The yardstick (docs/cost-models.md) fixes the work: cost model, pool, budget and seats. Case A is the first
1,000 rows of the Azure conversation trace, case B all of it. Run time counts from building the pool to the closed
log, without imports and the reading of the trace. Each measurement has a process of its own; cases take turns, so
that a slow moment of the machine does not fall on one of them alone. The best of the repeats is reported.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from experiments.options import ReplayOptions
from experiments.phases import PhaseTimer, instrument
from experiments.replay import replay
from tinyllm.engine.record.reader import read_run
from tinyllm.errors import TinyLLMError
from traces.export import write_trace
from traces.generate import generate
from traces.lengths import LogNormal

AZURE_CONV = Path("azure2023/AzureLLMInferenceTrace_conv.csv")
LOOP_ROUNDS = 1_000_000


class Case(NamedTuple):
    """A part of the trace: its first `requests` rows, or all; `golden` steps under FCFS on the Azure trace."""

    name: str
    requests: int | None
    golden: int


CASES = (Case("A", 1_000, 7_918), Case("B", None, 109_246))


class Measured(NamedTuple):
    """One run. Times are seconds, memory bytes; `loop_s` is the fixed loop's best time in the same process."""

    steps: int
    run_s: float
    rows_per_step: float
    loop_s: float
    peak_rss: int

    @property
    def step_s(self) -> float:
        return self.run_s / self.steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a step count is not the golden one."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench_sim", description=__doc__)
    parser.add_argument(
        "trace", type=Path, nargs="?", help="Azure conversation trace; default: in $TINYLLM_TRACES"
    )
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each case")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tinyllm-bench-") as scratch:
        try:
            trace, is_azure = find_trace(options.trace, Path(scratch))
            best = measure_all(trace, max(1, options.repeats))
            phases = in_child(time_phases, trace, CASES[0])
        except TinyLLMError as error:
            print(f"bench: {error}", file=sys.stderr)
            return error.exit_code
    return report(best, phases, is_azure)


def find_trace(given: Path | None, scratch: Path) -> tuple[Path, bool]:
    """The Azure trace, or where it is not there one generated with its size, rate and median lengths."""
    folder = Path(os.environ.get("TINYLLM_TRACES", "../shared/traces"))
    path = given or folder / AZURE_CONV
    if given is not None or path.is_file():
        print(f"Trace: {path}")
        return path, path.name == AZURE_CONV.name
    print(
        f"Trace: GENERATED, because {path} is not there (set TINYLLM_TRACES): step counts are not comparable"
    )
    trace = generate(
        "poisson", requests=19_366, seed=0, rate=5.5, prompt=LogNormal(1020, 0.6), output=LogNormal(129, 1.0)
    )
    return write_trace(trace, scratch / "generated.parquet"), False


def measure_all(trace: Path, repeats: int) -> dict[Case, Measured]:
    """The best of `repeats` measurements of each case, taken in turns."""
    best: dict[Case, Measured] = {}
    for _ in range(repeats):
        for case in CASES:
            measured = in_child(measure, trace, case)
            if case not in best or measured.run_s < best[case].run_s:
                best[case] = measured
    return best


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process: nothing of an earlier run is warm, and its peak memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def measure(trace: Path, case: Case) -> Measured:
    """Replay a case once under FCFS and the yardstick."""
    with tempfile.TemporaryDirectory(prefix="tinyllm-bench-") as scratch:
        loop_s = fixed_loop()
        result = replay(_options(trace, case, Path(scratch) / "run"))
        # Read before the log is, which needs memory of its own; Linux counts in KiB, macOS in bytes.
        peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
            1 if sys.platform == "darwin" else 1024
        )
        loop_s = min(loop_s, fixed_loop())
        steps = read_run(result.directory).steps
        rows = int((steps["prefill_seqs"] + steps["decode_seqs"]).sum())
    return Measured(result.num_steps, result.run_time_s, rows / result.num_steps, loop_s, peak_rss)


def time_phases(trace: Path, case: Case) -> PhaseTimer:
    """Replay a case once with a timer around each phase of a step."""
    timer = instrument()
    with tempfile.TemporaryDirectory(prefix="tinyllm-bench-") as scratch:
        result = replay(_options(trace, case, Path(scratch) / "run"))
    timer.finish(result.run_time_s, result.num_steps)
    return timer


def fixed_loop() -> float:
    """Best of three times, in seconds, of the loop that stands for the speed of Python on this machine."""
    table = list(range(1024))
    times = []
    for _ in range(3):
        started, total = time.perf_counter(), 0
        for i in range(LOOP_ROUNDS):
            total += table[i & 1023]
        times.append(time.perf_counter() - started)
    return min(times)


def _options(trace: Path, case: Case, out: Path) -> ReplayOptions:
    return ReplayOptions(trace=trace, out=out, requests=case.requests, cost_model="yardstick")


def report(best: dict[Case, Measured], phases: PhaseTimer, is_azure: bool) -> int:
    """Print the tables; return 1 if a step count is not the golden one."""
    console = Console(width=110, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    headings = (
        "case",
        "steps",
        "golden",
        "run s",
        "µs a step",
        "rows a step",
        "loop rounds a step",
        "peak MB",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for case, measured in best.items():
        table.add_row(
            case.name,
            f"{measured.steps:,}",
            _verdict(case, measured, is_azure),
            f"{measured.run_s:.2f}",
            f"{measured.step_s * 1e6:.1f}",
            f"{measured.rows_per_step:.1f}",
            f"{measured.step_s / (measured.loop_s / LOOP_ROUNDS):,.0f}",
            f"{measured.peak_rss / 1e6:.0f}",
        )
    console.print(table)
    loop_ns = min(measured.loop_s for measured in best.values()) / LOOP_ROUNDS * 1e9
    console.print(
        f"A loop round is `total += table[i & 1023]` in pure Python: {loop_ns:.1f} ns here.\n", markup=False
    )
    console.print(phase_table(phases))
    wrong = is_azure and any(measured.steps != case.golden for case, measured in best.items())
    return 1 if wrong else 0


def _verdict(case: Case, measured: Measured, is_azure: bool) -> str:
    if not is_azure:
        return "–"
    return "equal" if measured.steps == case.golden else f"NOT {case.golden:,}"


def phase_table(phases: PhaseTimer) -> Table:
    """Where the time of a step goes, in one run of case A of its own, with timers (a few µs a step) in it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="case A by phase", title_justify="left")
    for heading in ("phase", "µs a step", "share"):
        table.add_column(heading, justify="left" if heading == "phase" else "right")
    for phase, seconds in phases.shares():
        table.add_row(
            phase, f"{seconds / phases.num_steps * 1e6:.1f}", f"{seconds / phases.total_s * 100:.0f} %"
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
