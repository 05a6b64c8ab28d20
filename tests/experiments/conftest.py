from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.options import ReplayOptions
from traces.export import write_trace
from traces.generate import generate
from traces.lengths import parse_lengths
from traces.schema import Provenance, Trace, TraceRow


@pytest.fixture
def make_trace(tmp_path: Path) -> Callable[..., Path]:
    """`make_trace(requests=100, rate=50.0)`: a generated trace in `trace.parquet`."""

    def make(
        requests: int = 100, rate: float = 50.0, seed: int = 1, output: str = "lognormal:median=30,sigma=0.8"
    ) -> Path:
        prompt = parse_lengths("lognormal:median=80,sigma=1")
        trace = generate(
            "poisson", requests=requests, seed=seed, rate=rate, prompt=prompt, output=parse_lengths(output)
        )
        return write_trace(trace, tmp_path / "trace.parquet", force=True)

    return make


@pytest.fixture
def make_options(make_trace: Callable[..., Path], tmp_path: Path) -> Callable[..., ReplayOptions]:
    """`make_options(policy="srpt", num_gpu_blocks=100)`: a replay of a generated trace under the yardstick."""

    def make(requests_in_trace: int = 100, out: str = "run", **options: Any) -> ReplayOptions:
        trace = make_trace(requests_in_trace)
        return ReplayOptions(trace=trace, out=tmp_path / out, **{"cost_model": "yardstick", **options})

    return make


@pytest.fixture
def shared_prefixes(tmp_path: Path) -> Path:
    """A trace of 40 requests that share prefixes, of three tenants and priorities, made without random numbers."""
    rows = [
        TraceRow(
            source_row=n,
            arrival_ns=(n // 3) * 60_000_000 + (n % 3) * 7_000_000,
            prompt_tokens=(prompt := 4 + (n * 13) % 29),
            output_tokens=1 + (n * 7) % 17,
            tenant=("ada", "bob", "ünal")[n * n % 3],
            priority=n % 4,
            prefix_ids=tuple(
                100 * (n % 3 if block < 2 else n + 3) + block for block in range(-(-prompt // 8))
            ),
        )
        for n in range(40)
    ]
    trace = Trace(
        iter(rows), Provenance("made by hand", "table", rows_in=40, rows_out=40), prefix_block_size=8
    )
    return write_trace(trace, tmp_path / "shared_prefixes.parquet")
