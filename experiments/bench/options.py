"""What `tinyllm bench` is asked to do: the names are those of the command line, which documents them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.bench.suite import Suite
from experiments.bench.toml_table import Range
from tinyllm.errors import InputError


@dataclass(frozen=True)
class BenchOptions:
    """The options of `tinyllm bench`; None leaves the suite's or a computed value."""

    suite: str
    model: Path
    out: Path
    backend: str = "tinyllm,transformers,vllm"
    length_scale: float = 1.0
    requests: int | None = None
    shards: int | None = None
    repeats: int | None = None
    trace: Path | None = None
    format: str | None = None
    columns: str | None = None
    unit: str | None = None
    prefix_block_size: int | None = None
    order: str = "error"
    seed: int = 0
    dtype: str = "float32"
    num_gpu_blocks: int | None = None
    vllm_python: Path | None = None
    dry_run: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        for name in ("requests", "shards", "repeats", "num_gpu_blocks"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} {value}: give at least 1")
        if not 0 < self.length_scale < float("inf"):
            raise InputError(f"--length-scale {self.length_scale:g}: give a number above 0, for instance 0.1")
        if self.seed < 0:
            raise InputError(f"--seed {self.seed}: give 0 or more")

    def num_repeats(self, suite: Suite) -> int:
        """How often the suite is run."""
        return self.repeats or suite.repeats

    def at_most(self, requests: int) -> int:
        """Requests of a workload that has so many in the suite."""
        return min(requests, self.requests or requests)

    def num_shards(self, shards: int) -> int:
        """Shards of a cohort that has so many in the suite."""
        return min(shards, self.shards or shards)

    def scaled(self, tokens: Range) -> Range:
        """Lengths of the suite at this scale, rounded up."""
        return Range(*(self.scaled_length(each) for each in tokens))

    def scaled_length(self, tokens: int) -> int:
        """One length of the suite at this scale, rounded up."""
        # The product's last bits are noise: 100 x 1.1 is not to become 111.
        scaled = round(tokens * self.length_scale, 9)
        return max(1, int(scaled) + (scaled > int(scaled)))
