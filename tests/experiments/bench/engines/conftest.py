from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from experiments.bench.jobs import BenchRequest

PROMPTS = ([7, 3, 250, 9, 9], [100, 2, 30, 4, 50, 6, 70, 8, 90], list(range(40, 60)))


@pytest.fixture
def make_requests() -> Callable[..., list[BenchRequest]]:
    """`make_requests([8, 5, 6], arrivals=[0, 0.1, 0.2])`: three prompts of different lengths, by name r0 to r2."""

    def make(max_tokens: Sequence[int], arrivals: Sequence[float] = (0, 0, 0)) -> list[BenchRequest]:
        each = zip(PROMPTS, max_tokens, arrivals, strict=True)
        return [BenchRequest(f"r{n}", list(p), m, at) for n, (p, m, at) in enumerate(each)]

    return make
