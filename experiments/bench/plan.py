"""What a run of a suite does, in which order: built before anything is loaded, the same for every engine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from experiments.bench.engines import family_engines
from experiments.bench.jobs import BenchRequest
from experiments.bench.options import BenchOptions
from experiments.bench.suite import Suite, load_suite
from experiments.bench.vocabulary import Vocabulary
from experiments.bench.windows import TraceSource, trace_streams
from experiments.bench.workloads import Stream, Workload, cohort_workloads, open_loop_stream
from sim.shapes import ModelShape, shape_by_name
from tinyllm.errors import InputError

BLOCK_SIZE: Final = 16
MAX_NUM_SEQS: Final = 256
"""Default of every engine here: so many requests have to find room in the KV pool."""

POOL_ROOM: Final = 1.25
"""Some engines admit nobody while little of their pool is free; no engine is to wait for that."""

MAX_POOL_BYTES: Final = 4 * 2**30
"""Of the KV pool, where the user gives no size and one request does not need more."""


@dataclass(frozen=True)
class Item:
    """One turn of all engines: a workload that is known, or a stream at a share of a capacity that is measured.

    Attributes:
        workload: None for a replay of `stream` at `load`.
    """

    name: str
    workload: Workload | None = None
    stream: Stream | None = None
    load: float = 0.0

    def resolve(self, capacities: Mapping[str, float]) -> Workload:
        """The workload, with the capacity of its stream in requests/s."""
        if self.workload is not None:
            return self.workload
        assert self.stream is not None
        return self.stream.at_load(self.load, capacities[self.stream.name])


class Turn(NamedTuple):
    """An item, and the engines in the order in which they serve it."""

    repeat: int
    item: Item
    engines: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """All that is decided before the run.

    Attributes:
        families: what `--backend` names → its engines.
        trace: where the windows come from, None without windows.
        num_gpu_blocks: KV blocks of `BLOCK_SIZE` tokens.
        max_model_len: tokens of the longest request.
    """

    suite: Suite
    options: BenchOptions
    shape: ModelShape
    families: dict[str, tuple[str, ...]]
    items: tuple[Item, ...]
    streams: tuple[Stream, ...]
    trace: TraceSource | None
    num_gpu_blocks: int
    max_model_len: int

    @property
    def engines(self) -> tuple[str, ...]:
        return tuple(engine for engines in self.families.values() for engine in engines)

    @property
    def repeats(self) -> int:
        return self.options.num_repeats(self.suite)

    def turns(self, engines: Sequence[str]) -> Iterator[Turn]:
        """All turns of the engines that could be started."""
        for repeat, number, place in rotation(len(self.items), self.repeats, len(engines)):
            yield Turn(repeat, self.items[number], (*engines[place:], *engines[:place]))


def make_plan(options: BenchOptions) -> Plan:
    """The plan of what was asked for.

    Raises:
        InputError: whatever is wrong with suite, model, trace or option; nothing was loaded or written.
    """
    suite = load_suite(options.suite)
    families = family_engines([name.strip() for name in options.backend.split(",") if name.strip()])
    if not families:
        raise InputError("--backend: names no engine; give for instance tinyllm,transformers")
    if not (options.model / "config.json").is_file():
        raise InputError(
            f"--model {options.model}: has no config.json; `tinyllm get-model` brings a checkpoint"
        )
    if options.trace is not None and suite.windows is None:
        raise InputError(f"--trace {options.trace}: the suite {suite.name} has no [trace]; leave it out")
    shape = shape_by_name(options.model / "config.json")
    vocabulary = Vocabulary(options.model, shape, options.seed)
    cohorts = [one for each in suite.cohorts for one in cohort_workloads(each, options, vocabulary)]
    streams = [open_loop_stream(each, options, vocabulary) for each in suite.open_loops]
    trace = None
    if suite.windows is not None:
        windows, trace = trace_streams(suite.windows, options, vocabulary)
        streams += windows
    items = [Item(each.name, each) for each in cohorts] + [item for each in streams for item in _items(each)]
    known = [item.workload for item in items if item.workload is not None]
    return Plan(
        suite=suite,
        options=options,
        shape=shape,
        families=families,
        items=tuple(items),
        streams=tuple(streams),
        trace=trace,
        num_gpu_blocks=options.num_gpu_blocks or _pool_blocks(known, shape, options.dtype),
        max_model_len=_longest(known, streams),
    )


def rotation(items: int, repeats: int, engines: int) -> Iterator[tuple[int, int, int]]:
    """`(repeat, item, engine that begins)`; the others follow in a circle.

    The first place goes round from turn to turn. Where the items are a multiple of the engines, it would come back to
    the same engine for the same item in every repeat: each full circle of repeats begins one place further. So every
    engine has every place equally often, give or take one, over all turns and over the repeats of one item.
    """
    circle = engines // math.gcd(items, engines)
    for repeat in range(repeats):
        for item in range(items):
            yield repeat, item, (repeat * items + item + repeat // circle) % engines


def _items(stream: Stream) -> Iterator[Item]:
    capacity = stream.at_once()
    yield Item(capacity.name, capacity)
    for load in stream.loads:
        yield Item(f"{stream.name}/{load:.2f}", None, stream, load)


def _pool_blocks(workloads: Sequence[Workload], shape: ModelShape, dtype: str) -> int:
    """Blocks for the largest workload's requests that run at once, and some more, as far as `MAX_POOL_BYTES` go."""
    block_bytes = BLOCK_SIZE * shape.kv_bytes_per_token(dtype)
    wanted, least = 0, 0
    for workload in workloads:
        blocks = sorted((-(-_length(request) // BLOCK_SIZE) for request in workload.requests), reverse=True)
        wanted, least = max(wanted, sum(blocks[:MAX_NUM_SEQS])), max(least, blocks[0])
    return max(least, min(math.ceil(POOL_ROOM * wanted), MAX_POOL_BYTES // block_bytes))


def _longest(workloads: Sequence[Workload], streams: Sequence[Stream]) -> int:
    """Tokens of the longest request, those of the streams' warm-up included."""
    rows = [row.prompt_tokens + max(1, row.output_tokens) for stream in streams for row in stream.rows]
    return max([_length(request) for workload in workloads for request in workload.requests] + rows)


def _length(request: BenchRequest) -> int:
    return len(request.prompt_token_ids) + request.max_tokens
