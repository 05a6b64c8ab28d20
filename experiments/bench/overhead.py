"""What a step of the real engine spends beside the model: scheduler, sampler, detokenizer and log.

    python -m experiments.bench.overhead models/smollm2-135m [--seqs 64] [--prompt-tokens 100] [--output-tokens 64]

All requests are there at once, are decoded to text and logged as in `tinyllm replay --mode real`. Counted are the steps
in which every request decodes. `schedule_s`, `execute_s` and `gap_s` are the log's columns; the sampler, which is a
part of `execute_s`, and the detokenizer and the log, parts of `gap_s`, are timed by wrapping their methods here.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from experiments.run_directory import RunDirectory
from tinyllm.engine.real import RealEngine, real_config
from tinyllm.engine.record.reader import read_run
from tinyllm.engine.record.recorder import LogRecorder
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.errors import InputError, TinyLLMError
from tinyllm.policy.fcfs import FCFS

LIMIT = 0.05
"""Of a step, for all of it."""

BLOCK_SIZE = 16
FLUSH_SECONDS = 2.0
"""As in a real replay."""


@dataclass(frozen=True)
class Overhead:
    """Shares of a step's whole time.

    Attributes:
        steps: how many were counted.
        step_s: their mean time, from start to start.
        scheduler: `schedule_s`.
        sampler: as wrapped.
        after: `gap_s`: outputs taken in, detokenized and logged, requests ended.
        detokenizer, log: as wrapped, parts of `after`.
    """

    steps: int
    step_s: float
    scheduler: float
    sampler: float
    after: float
    detokenizer: float
    log: float

    @property
    def total(self) -> float:
        return self.scheduler + self.sampler + self.after


class Stopwatch:
    """Times the calls of one method of one object, and leaves everything else as it is."""

    def __init__(self, owner: Any, name: str) -> None:
        self.seconds: list[float] = []
        setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                self.seconds.append(time.perf_counter() - start)

        return timed


def measure(model: Path, seqs: int, prompt_tokens: int, output_tokens: int, scratch: Path) -> Overhead:
    """Serve `seqs` requests at once and read the shares from the log of the run.

    Raises:
        InputError: a wrong model or size, or no step in which all of them decode.
    """
    if min(seqs, prompt_tokens) < 1 or output_tokens < 3:
        raise InputError("--seqs and --prompt-tokens have to be at least 1, --output-tokens at least 3")
    num_blocks = seqs * -(-(prompt_tokens + output_tokens) // BLOCK_SIZE)
    config = real_config(
        model,
        num_gpu_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=seqs,
        enable_prefix_caching=False,
    )
    engine = RealEngine(model, config, FCFS())
    run = RunDirectory(scratch / "run", {"mode": "real", "device": "cpu", "config": config.to_dict()})
    recorder = LogRecorder(run.open_log(FLUSH_SECONDS), engine.scheduler)
    engine.core.recorder = recorder
    watches = {
        "sampler": Stopwatch(engine.runner.sampler, "sample"),
        "detokenizer": Stopwatch(engine.outputs, "process"),
        "log": Stopwatch(recorder, "stepped"),
    }
    run.write_workload(_submit(engine, seqs, prompt_tokens, output_tokens))
    while engine.step() is not None:
        pass
    recorder.close(engine.clock())
    run.finish("complete")
    return _shares(scratch / "run", seqs, watches)


def _submit(engine: RealEngine, seqs: int, prompt_tokens: int, output_tokens: int) -> list[ArrivalRecord]:
    generator = np.random.default_rng(0)
    records = []
    for number in range(seqs):
        record = ArrivalRecord(f"r{number}", number, 0, prompt_tokens, output_tokens, output_tokens)
        prompt = generator.integers(0, engine.model_config.vocab_size, prompt_tokens).tolist()
        params = SamplingParams(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
        refused = engine.add_request(record, prompt, params, engine.clock())
        if refused is not None:
            raise InputError(f"the requests can't be served: {refused}")
        records.append(record)
    return records


def _shares(run: Path, seqs: int, watches: dict[str, Stopwatch]) -> Overhead:
    steps = read_run(run).steps
    # The last step ends the requests; the one after the prompts is as good as any.
    counted = ((steps["decode_seqs"] == seqs) & (steps["finished"] == 0)).to_numpy(bool)
    if not counted.any():
        raise InputError(f"in no step do all {seqs} requests decode; give more --output-tokens")
    seconds = {
        name: float(steps[name].to_numpy(float)[counted].sum())
        for name in ("schedule_s", "execute_s", "gap_s")
    }
    whole = sum(seconds.values())
    # A step that samples nothing, in the midst of prompts, never calls the sampler.
    sampled = np.flatnonzero((steps["sampled_tokens"] > 0).to_numpy(bool))
    called = {"sampler": sampled, "detokenizer": np.arange(len(steps)), "log": np.arange(len(steps))}
    part = {
        name: float(np.array(watch.seconds)[counted[called[name]]].sum()) / whole
        for name, watch in watches.items()
    }
    num_steps = int(counted.sum())
    return Overhead(
        num_steps, whole / num_steps, seconds["schedule_s"] / whole, after=seconds["gap_s"] / whole, **part
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if all of it takes more than `LIMIT` of a step."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.overhead", description=__doc__)
    parser.add_argument("model", type=Path, help="a local Hugging Face directory")
    parser.add_argument("--seqs", type=int, default=64, help="requests that decode together")
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--output-tokens", type=int, default=64)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tinyllm-overhead-") as scratch:
        sizes = (options.seqs, options.prompt_tokens, options.output_tokens)
        found = measure(options.model, *sizes, Path(scratch))
    print(f"{found.steps} steps of {options.seqs} decoding requests, {1e3 * found.step_s:.1f} ms each:")
    for name in ("scheduler", "sampler", "after", "detokenizer", "log", "total"):
        where = ", a part of after" if name in ("detokenizer", "log") else ""
        print(f"  {name:<12}{getattr(found, name):7.2%}{where}")
    ok = found.total < LIMIT
    print(f"{'under' if ok else 'OVER'} the limit of {LIMIT:.0%} of a step")
    return 0 if ok else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TinyLLMError as error:
        print(f"overhead: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
