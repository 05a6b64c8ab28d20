from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.options import ReplayOptions
from traces.export import write_trace
from traces.generate import generate
from traces.lengths import parse_lengths


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
