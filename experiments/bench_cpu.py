"""The CPU engine measured: how a matrix product is computed, who computes a step, and how near a chunk is to products.

    python -m experiments.bench_cpu models/smollm2-135m [--rows 1,4,8,16,64]

All ways of one size are timed in turn, again and again, and the fastest time of each is shown: what else the machine
does slows all of them alike. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.models.base import DecoderModel
from tinyllm.models.loader import load_model
from tinyllm.models.matmul import multiply, pack
from tinyllm.models.panels import use_threads
from tinyllm.policy.batch import ScheduledBatch
from tinyllm.policy.request import Request
from tinyllm.runner.batch import FlatBatch
from tinyllm.runner.model_runner import ModelRunner

Work = Callable[[], object]

StepOf = Callable[[int], FlatBatch]
"""Each request's next so many tokens."""

BLOCK_SIZE = 16
CHUNK = 512
REPEATS = 7


def fastest(ways: Mapping[str, Work]) -> dict[str, float]:
    """The shortest of `REPEATS` times of each way, in seconds; the ways take turns."""
    for work in ways.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, work in ways.items():
            start = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - start)
    return {name: min(measured) for name, measured in times.items()}


def in_panels(weights: list[Tensor], name: str) -> list[Tensor]:
    """Weights in panels of the format of that name, made such that it can hold them."""
    made = []
    for weight in weights:
        if name == "bfloat16":
            weight = weight.bfloat16().float()
        elif name == "codes":
            weight = (4 * weight).round().clamp(-8, 7) / 4
            weight[:, ::32], weight[:, 1::32] = -2, 1.75
        parameter = nn.Parameter(weight.clone(), requires_grad=False)
        assert pack([parameter]).name == name
        made.append(parameter.data)
    return made


def compare_products(sizes: tuple[int, int], number: int, rows: int) -> dict[str, float]:
    """Each way through so many matrices [n, k] in turn, so that none of them stays in a cache: GFLOP/s."""
    n, k = sizes
    x = torch.randn(rows, k)
    weights = [torch.randn(n, k) for _ in range(number)]
    panels = {name: in_panels(weights, name) for name in ("float32", "bfloat16", "codes")}
    onednn = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in weights]

    def each(product: Callable[[Tensor], object], matrices: list[Tensor]) -> Work:
        return lambda: [product(matrix) for matrix in matrices]

    def pointwise(weight: Tensor) -> object:
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")

    seconds = fastest(
        {
            "F.linear": each(lambda weight: functional.linear(x, weight), weights),
            "mm(W, xT)": each(lambda weight: torch.mm(weight, x.t()), weights),
            "oneDNN packed": each(pointwise, onednn),
            **{
                f"panels, {name}": each(lambda weight: multiply(x, weight, None, n), formed)
                for name, formed in panels.items()
            },
        }
    )
    flops = 2 * rows * number * n * k
    return {way: flops / taken / 1e9 for way, taken in seconds.items()}


def prepare(model: DecoderModel, rows: int, context: int) -> tuple[ModelRunner, StepOf]:
    """A runner with so many requests, `context` of whose tokens are computed, and what makes their next step."""
    num_blocks = -(-(context + CHUNK) // BLOCK_SIZE)
    runner = ModelRunner(model, rows * num_blocks, BLOCK_SIZE)
    generator = np.random.default_rng(0)
    requests = []
    for number in range(rows):
        request = Request(str(number), context + CHUNK, 8)
        request.block_ids = list(range(number * num_blocks, (number + 1) * num_blocks))
        ids = generator.integers(0, model.config.vocab_size, context + CHUNK).tolist()
        runner.add(request.request_id, ids, SamplingParams(temperature=0))
        requests.append(request)

    def step(tokens: int) -> FlatBatch:
        batch = ScheduledBatch()
        batch.requests, batch.num_scheduled_tokens = requests, [tokens] * rows
        return FlatBatch.build(batch, runner._requests, BLOCK_SIZE, runner.device)

    if context:
        runner.forward(step(context))
        for request in requests:
            request.num_computed_tokens = context
    return runner, step


def compare_steps(compact: DecoderModel, plain: DecoderModel, rows: int, context: int) -> dict[str, float]:
    """A step of `rows` requests that decode, each on `context` tokens, head included: ms.

    Layer by layer and compiled with weights in float32, and compiled with compact ones.
    """
    with torch.inference_mode():
        ways: dict[str, Work] = {}
        for name, model in (("fused, compact", compact), ("fused, float32", plain), ("by layer", plain)):
            runner, step = prepare(model, rows, context)
            if name == "by layer":
                runner.fused = None
            ways[name] = partial(_decode, model, runner, step(1))
        return {way: 1e3 * taken for way, taken in fastest(ways).items()}


def _decode(model: DecoderModel, runner: ModelRunner, flat: FlatBatch) -> Tensor:
    return model.compute_logits(runner.forward(flat))


def compare_chunk(model: DecoderModel, context: int) -> dict[str, float]:
    """A chunk of `CHUNK` prompt tokens after `context` of them beside the library's products of as many rows: GFLOP/s.

    Both ways of the largest product go through all layers in turn with that chunk; arithmetic of the chunk is that of
    its products and of attention.
    """
    config = model.config
    n, k = 2 * config.intermediate_size, config.hidden_size
    x, weights = torch.randn(CHUNK, k), [torch.randn(n, k) for _ in range(config.num_layers)]
    heads = config.num_heads + 2 * config.num_kv_heads
    parameters = k * (heads + config.num_heads) * config.head_dim + 3 * k * config.intermediate_size
    pairs = CHUNK * context + CHUNK * (CHUNK + 1) // 2
    attention = 4 * config.num_heads * config.head_dim * pairs
    with torch.inference_mode():
        runner, step = prepare(model, 1, context)
        # Every token goes through every layer, as none but a sampling row does in the last one.
        flat = step(CHUNK)._replace(logits_rows=torch.arange(CHUNK))
        seconds = fastest(
            {
                "chunk": lambda: runner.forward(flat),
                "F.linear": lambda: [functional.linear(x, weight) for weight in weights],
                "mm(W, xT)": lambda: [torch.mm(weight, x.t()) for weight in weights],
            }
        )
    product = 2 * CHUNK * n * k * config.num_layers
    flops = {"chunk": config.num_layers * (2 * CHUNK * parameters + attention)}
    return {way: flops.get(way, product) / taken / 1e9 for way, taken in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", default="1,2,4,8,12,16,24,32,64,128,512")
    parser.add_argument("--context", type=int, default=200)
    options = parser.parse_args()
    model, plain = (load_model(options.model, is_compact=is_compact) for is_compact in (True, False))
    use_threads(torch.get_num_threads())
    all_rows = [int(text) for text in options.rows.split(",")]
    config = model.config
    heads = config.num_heads + 2 * config.num_kv_heads
    shapes = {
        "qkv": (heads * config.head_dim, config.hidden_size),
        "o": (config.hidden_size, config.num_heads * config.head_dim),
        "gate and up": (2 * config.intermediate_size, config.hidden_size),
        "down": (config.hidden_size, config.intermediate_size),
        "head": (config.vocab_size, config.hidden_size),
    }
    for name, (n, k) in shapes.items():
        print(f"\n{name}: {k} → {n}, GFLOP/s, {torch.get_num_threads()} threads")
        for rows in all_rows:
            number = 1 if name == "head" else config.num_layers
            print(f"{rows:5}", _line(compare_products((n, k), number, rows), "{:.0f}"))
    print(f"\na step of so many decoding requests, {options.context} tokens each, ms")
    for rows in all_rows:
        if rows * options.context <= 30_000:
            print(f"{rows:5}", _line(compare_steps(model, plain, rows, options.context), "{:.1f}"))
    print(f"\na chunk of {CHUNK} prompt tokens after so many, and the library's products, GFLOP/s")
    for context in (0, 1024):
        print(f"{context:5}", _line(compare_chunk(model, context), "{:.0f}"))


def _line(figures: Mapping[str, float], form: str) -> str:
    return "   ".join(f"{way} {form.format(figure)}" for way, figure in figures.items())


if __name__ == "__main__":
    main()
