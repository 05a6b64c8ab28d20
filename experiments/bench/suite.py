"""A benchmark suite: which requests, how often, and what a request has to meet; read from TOML."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from experiments.bench.toml_table import Range, TomlTable
from tinyllm.errors import InputError

SUITES: Final = Path(__file__).with_name("suites")
"""The suites that come along, one file each."""

MAX_LOAD: Final = 4.0
"""Shares of capacity above it only measure how long a queue gets."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True)
class Cohort:
    """Requests that are all there at once.

    Attributes:
        prompt_tokens, output_tokens: drawn evenly between both ends.
        shards: how many such sets of requests, each with lengths and tokens of its own.
        ignore_eos: False in a cohort of correctness, whose tokens are compared between engines.
    """

    name: str
    prompt_tokens: Range
    output_tokens: Range
    requests: int
    shards: int = 1
    ignore_eos: bool = True


@dataclass(frozen=True)
class OpenLoop:
    """Requests that arrive as a Poisson process at shares (`loads`) of the measured capacity.

    Attributes:
        warmup: requests that arrive before the others and are cut from the figures.
    """

    name: str
    prompt_tokens: Range
    output_tokens: Range
    requests: int
    warmup: int
    loads: tuple[float, ...]


@dataclass(frozen=True)
class TraceWindows:
    """Windows of a trace, each replayed at shares (`loads`) of its measured capacity.

    Attributes:
        positions: shares of the trace's rows at which the windows begin.
        requests: rows of a window, after `warmup` rows that are cut from the figures.
        prompt_buckets: upper ends, in prompt tokens, of all length buckets but the last.
    """

    positions: tuple[float, ...]
    requests: int
    warmup: int
    loads: tuple[float, ...]
    prompt_buckets: tuple[int, ...]


@dataclass(frozen=True)
class Limits:
    """What a good request meets: multiples of an unloaded engine's TTFT and TPOT (`docs/benchmarks.md`)."""

    ttft: float = 5.0
    tpot: float = 3.0


@dataclass(frozen=True)
class Suite:
    """What a TOML file holds.

    Attributes:
        repeats: how often all of it is run.
        cohorts: offline ones and those of correctness, in the file's order.
        max_lag_share: how long requests may be late in being handed over, as a share of their latency.
    """

    name: str
    about: str
    repeats: int
    cohorts: tuple[Cohort, ...]
    open_loops: tuple[OpenLoop, ...]
    windows: TraceWindows | None
    limits: Limits
    max_lag_share: float


def suite_names() -> list[str]:
    """Names of the suites that come along."""
    return sorted(path.stem for path in SUITES.glob("*.toml"))


def load_suite(name_or_path: str) -> Suite:
    """A suite by name, or by the path of a TOML file.

    Raises:
        InputError: no such suite, or what is wrong in the file, with its key and the mend.
    """
    path = SUITES / f"{name_or_path}.toml"
    if name_or_path not in suite_names():
        path = Path(name_or_path)
        if path.suffix != ".toml" or not path.is_file():
            known = ", ".join(suite_names())
            raise InputError(f"SUITE {name_or_path}: unknown; choose {known}, or give a .toml file")
    return parse_suite(path.stem, TomlTable.read(path))


def parse_suite(name: str, table: TomlTable) -> Suite:
    """The suite that a table describes. Raises `InputError` as `load_suite` does."""
    table.only("about", "repeats", "max_lag_share", "limits", "trace", "offline", "correctness", "open_loop")
    cohorts = [_cohort(each, ignore_eos=True) for each in table.tables("offline")]
    cohorts += [_cohort(each, ignore_eos=False) for each in table.tables("correctness")]
    open_loops = [_open_loop(each) for each in table.tables("open_loop")]
    trace = table.table("trace")
    if not cohorts and not open_loops and trace is None:
        raise InputError(
            f"{table.where}: has no workload; add [[offline]], [[correctness]], [[open_loop]] or [trace]"
        )
    _check_unique(table.where, [*(each.name for each in cohorts), *(each.name for each in open_loops)])
    return Suite(
        name=name,
        about=table.text("about"),
        repeats=table.whole("repeats", 1),
        cohorts=tuple(cohorts),
        open_loops=tuple(open_loops),
        windows=None if trace is None else _windows(trace),
        limits=_limits(table.table("limits")),
        max_lag_share=table.number("max_lag_share", 0.05),
    )


def _cohort(table: TomlTable, ignore_eos: bool) -> Cohort:
    table.only("name", "prompt_tokens", "output_tokens", "requests", "shards")
    return Cohort(
        name=_name(table),
        prompt_tokens=table.range("prompt_tokens"),
        output_tokens=table.range("output_tokens"),
        requests=table.whole("requests"),
        shards=table.whole("shards", 1),
        ignore_eos=ignore_eos,
    )


def _open_loop(table: TomlTable) -> OpenLoop:
    table.only("name", "prompt_tokens", "output_tokens", "requests", "warmup", "loads")
    return OpenLoop(
        name=_name(table),
        prompt_tokens=table.range("prompt_tokens"),
        output_tokens=table.range("output_tokens"),
        requests=table.whole("requests", least=2),
        warmup=table.whole("warmup", 0, least=0),
        loads=table.numbers("loads", below=MAX_LOAD),
    )


def _windows(table: TomlTable) -> TraceWindows:
    table.only("positions", "requests", "warmup", "loads", "prompt_buckets")
    return TraceWindows(
        positions=table.numbers("positions", below=1.0),
        requests=table.whole("requests", least=2),
        warmup=table.whole("warmup", 0, least=0),
        loads=table.numbers("loads", below=MAX_LOAD),
        prompt_buckets=tuple(int(edge) for edge in table.numbers("prompt_buckets", below=1e9)),
    )


def _limits(table: TomlTable | None) -> Limits:
    if table is None:
        return Limits()
    table.only("ttft", "tpot")
    return Limits(table.number("ttft", Limits.ttft), table.number("tpot", Limits.tpot))


def _name(table: TomlTable) -> str:
    name = table.text("name")
    if _NAME.fullmatch(name) is None:
        raise table.error("name", "use a-z, 0-9, '.', '_' and '-'")
    return name


def _check_unique(where: str, names: Iterable[str]) -> None:
    seen: list[str] = []
    for name in names:
        if name in seen:
            raise InputError(f"{where}: two workloads are named {name!r}; rename one")
        seen.append(name)
