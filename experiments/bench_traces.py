"""Memory and speed of `tinyllm trace` and of a replay on files as large as the public ones.

A file of the asked number of rows is written in the real format, then each command reads it in a process of its
own. Shown are its rows in, out and dropped, its peak memory, how much of that the rows took (the peak less that of
the same command on a file of 100 rows), and the rows that it read in a second of processor time, which other work
on the machine changes little.

This module imports nothing heavy: a child begins its count of peak memory with what its parent had.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from tinyllm.errors import IncompleteRunError

ROWS = 5_000_000
FEW_ROWS = 100
"""A file so small that what a command takes for it is its imports."""

REPLAYED = 2_000
"""Requests that the replays serve."""

ROWS_LINE = re.compile(r"([\d,]+) of ([\d,]+) rows(?: \(dropped: (.*)\))?")


class Shape(NamedTuple):
    """A public trace: how its file begins, its mean arrivals a second, its first time, a row at a time."""

    header: str
    rate: float
    start_s: int
    row: Callable[[float, random.Random], str]


class Usage(NamedTuple):
    """What a process took: bytes at its peak, seconds of processor time; and what it printed."""

    peak_rss: int
    cpu_s: float
    output: str


class Rows(NamedTuple):
    """What a command did with the rows that it read."""

    read: int
    out: int
    dropped: int


def burstgpt(at: float, rng: random.Random) -> str:
    """A row of BurstGPT file 1: whole seconds from midnight of day one, 1.78 % failures."""
    prompt, output = _lengths(rng, failures=0.0178)
    model = "GPT-4" if rng.random() < 0.153 else "ChatGPT"
    return f"{int(at)},{model},{prompt},{output},{prompt + output},API log\n"


def burstgpt3(at: float, rng: random.Random) -> str:
    """A row of file 3: two more columns in the middle, seconds as `19440110.0`, a session on 5 % of the rows."""
    prompt, output = _lengths(rng, failures=0.0726)
    talk = rng.random() < 0.05
    # Sessions of about three turns: the id is drawn from a third as many as there are such rows in a day.
    session = UUID(int=int(at // 86_400) * 10_000 + rng.randrange(800)) if talk else ""
    kind = "Conversation" if talk else "API"
    model = "GPT-4" if rng.random() < 0.152 else "ChatGPT"
    total = prompt + output
    return f"{int(at)}.0,{session},{2 + output // 20},{model},{prompt},{output},{total},{kind} log\n"


def azure2024(at: float, rng: random.Random) -> str:
    """A row of Azure 2024: microseconds and an offset; on a whole second without the fraction."""
    prompt, output = _lengths(rng, failures=0.0)
    stamp = datetime(2024, 5, 12, tzinfo=UTC) + timedelta(seconds=at)
    return f"{stamp},{prompt},{output}\n"


SHAPES = {
    "burstgpt": Shape(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n", 0.271, 5, burstgpt
    ),
    "burstgpt3": Shape(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
        0.562,
        19_440_110,
        burstgpt3,
    ),
    "azure2024": Shape("TIMESTAMP,ContextTokens,GeneratedTokens\n", 73.0, 0, azure2024),
}


def _lengths(rng: random.Random, failures: float) -> tuple[int, int]:
    prompt = min(int(74 * rng.paretovariate(1.1)), 29_665)
    return prompt, 0 if rng.random() < failures else min(int(14 * rng.paretovariate(0.9)), 7_315)


def write_file(path: Path, shape: Shape, rows: int) -> float:
    """Write `rows` Poisson arrivals of a shape, a row at a time; returns the time after the last, in seconds."""
    rng, at = random.Random(0), float(shape.start_s)
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(shape.header)
        for _ in range(rows):
            file.write(shape.row(at, rng))
            at += rng.expovariate(shape.rate)
    return at


def run_measured(arguments: Sequence[str]) -> Usage:
    """Run `tinyllm` with these arguments in a process of its own.

    Raises:
        IncompleteRunError: it failed; the message is what it said.
    """
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(
            [sys.executable, "-c", "from tinyllm.cli import main; main()", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "COLUMNS": "300"},
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if child.returncode:
        raise IncompleteRunError(f"tinyllm {' '.join(arguments)}: {text.strip()}")
    # Linux counts in KiB, macOS in bytes.
    peak_rss = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Usage(peak_rss, usage.ru_utime + usage.ru_stime, text)


def commands(trace: Path, start_s: float, end_s: float, rows: int) -> Iterator[tuple[str, list[str]]]:
    """Name and arguments of each command on a file of `rows` rows from `start_s` to `end_s` of trace time."""

    def span(first: float, share: float) -> str:
        return ":".join(f"{start_s + part * (end_s - start_s):.3f}" for part in (first, first + share))

    file, out = str(trace), trace.parent
    scaled = ["--thin", "0.5", "--length-scale", "0.5", "--rate", "8"]
    replay = ["replay", file, "--cost-model", "yardstick", "--force", "--out", str(out / "run")]
    yield "info", ["trace", "info", file]
    yield "convert", ["trace", "convert", file, "--force", "--out", str(out / "all.parquet")]
    window = ["trace", "window", file, span(0.5, 0.1)]
    yield "window, a tenth", [*window, "--force", "--out", str(out / "window.parquet")]
    prepare = ["trace", "prepare", file, "--window", span(0.02, 0.96), *scaled]
    yield "prepare", [*prepare, "--force", "--out", str(out / "prepared.parquet")]
    yield "replay --window", [*replay, "--window", span(0.5, REPLAYED / rows)]
    yield "replay --requests", [*replay, "--requests", str(REPLAYED)]


def rows_of(usage: Usage, out: Path) -> Rows:
    """What became of the rows, as a command printed it, else as the manifest of its run in `out` says."""
    said = ROWS_LINE.search(usage.output)
    if said is None:
        trace = json.loads((out / "run" / "manifest.json").read_text())["trace"]
        return Rows(trace["rows_in"], trace["rows_out"], sum(trace["dropped"].values()))
    kept, read = (int(number.replace(",", "")) for number in said.group(1, 2))
    dropped = sum(int(part.split()[-1].replace(",", "")) for part in (said[3] or "none 0").split(", "))
    return Rows(read, kept, dropped)


def make_commands(folder: Path, shape: Shape, rows: int) -> list[tuple[str, list[str]]]:
    """Write a file of `rows` rows into a new `folder`; the commands on it."""
    folder.mkdir()
    trace = folder / "trace.csv"
    end_s = write_file(trace, shape, rows)
    return list(commands(trace, shape.start_s, end_s, rows))


def bench(name: str, rows: int, folder: Path) -> bool:
    """Measure all commands on one format and print a line each; whether all rows are accounted for."""
    large = make_commands(folder / "large", SHAPES[name], rows)
    small = make_commands(folder / "small", SHAPES[name], FEW_ROWS)
    print(f"\n{name}: {rows:,} rows, {(folder / 'large/trace.csv').stat().st_size / 1e6:,.0f} MB, generated")
    print(
        f"{'command':20}{'rows in':>12}{'out':>12}{'dropped':>12}{'peak MB':>9}{'of rows':>9}{'rows/CPU s':>12}"
    )
    complete = True
    for (title, arguments), (_, few) in zip(large, small, strict=True):
        usage = run_measured(arguments)
        done = rows_of(usage, folder / "large")
        print(
            f"{title:20}{done.read:12,}{done.out:12,}{done.dropped:12,}{usage.peak_rss / 1e6:9,.0f}"
            f"{(usage.peak_rss - run_measured(few).peak_rss) / 1e6:9,.0f}{done.read / usage.cpu_s:12,.0f}",
            flush=True,
        )
        complete &= done.read == done.out + done.dropped
    return complete


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a command lost rows."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench_traces", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="of each generated file")
    parser.add_argument("--format", choices=[*SHAPES, "all"], default="all")
    parser.add_argument("--folder", type=Path, help="where the files are written, and removed")
    options = parser.parse_args(arguments)
    if options.rows < FEW_ROWS:
        parser.error(f"--rows {options.rows}: give {FEW_ROWS} or more")
    names = SHAPES if options.format == "all" else [options.format]
    complete = True
    for name in names:
        with tempfile.TemporaryDirectory(prefix="tinyllm-bench-", dir=options.folder) as folder:
            try:
                complete &= bench(name, options.rows, Path(folder))
            except IncompleteRunError as error:
                print(f"bench: {error}", file=sys.stderr)
                return error.exit_code
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
