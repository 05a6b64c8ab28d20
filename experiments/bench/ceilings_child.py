"""The child of `experiments.bench.ceilings`: a line in is a measurement, a line out its figures.

python -m experiments.bench.ceilings_child '[[576, 3072], [1536, 576]]'
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn import functional

from experiments.bench.ceilings import Measured

ROWS = (64, 512, 1024, 2048)
REPEATS = 2
READ_REPEATS = 5
MAX_ELEMENTS = 2**23
"""Of a product: the head of a batch of prompts would take longer than all others together."""

MEMORY_BYTES = 2**28
"""Read at once, several times what caches hold."""


def measure(shapes: Sequence[tuple[int, int]]) -> Measured:
    """The fastest product and the fastest read."""
    with torch.inference_mode():
        gflops, product = max(_products(shapes))
        return Measured(gflops, product, _read_gb_s(), torch.get_num_threads())


def _products(shapes: Sequence[tuple[int, int]]) -> Iterator[tuple[float, str]]:
    for inputs, outputs in shapes:
        weight = torch.randn(outputs, inputs)
        for rows in ROWS:
            if rows * outputs > MAX_ELEMENTS:
                continue
            x = torch.randn(rows, inputs)
            flops = 2.0 * rows * inputs * outputs
            for way, product in _ways(x, weight):
                yield flops / _fastest(product) / 1e9, f"{rows} rows, {inputs} → {outputs}, {way}"


def _ways(x: torch.Tensor, weight: torch.Tensor) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "x @ weight.T", lambda: functional.linear(x, weight)
    yield "weight @ x.T", lambda: torch.mm(weight, x.t())


def _read_gb_s() -> float:
    table = torch.ones(MEMORY_BYTES // 4)
    matrix, vector = table.view(-1, 1024), torch.ones(1024)
    ways: list[Callable[[], object]] = [table.sum, lambda: torch.mv(matrix, vector), table.amax]
    return MEMORY_BYTES / min(_fastest(way, READ_REPEATS) for way in ways) / 1e9


def _fastest(work: Callable[[], object], repeats: int = REPEATS) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    shapes = [(int(inputs), int(outputs)) for inputs, outputs in json.loads(sys.argv[1])]
    for _ in sys.stdin:
        print(measure(shapes).to_json(), flush=True)


if __name__ == "__main__":
    main()
