"""One policy file, three engines: the same policies in the simulator, in our engine and inside vLLM.

    python -m experiments.three_engines TRACE --model DIR --out DIR --policies fcfs srpt vtc mypolicy:Mine

Twice: with the whole window submitted before the first step, where equal limits must give equal first admissions,
and at recorded times, where the engines' speeds differ and the rank correlation to vLLM's order is told.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.report import write_report
from analysis.summary import summarize
from analysis.table import print_summaries
from experiments.calibrate import fit_linear
from experiments.options import ReplayOptions
from experiments.replay import replay
from tinyllm.bridge.options import VLLM_DEFAULTS
from tinyllm.engine.record.reader import Run, read_run
from tinyllm.errors import TinyLLMError

ENGINES = ("real", "sim", "vllm")
"""The real engine first: the simulated device is fitted to its run."""


@dataclass(frozen=True)
class Orders:
    """The first admissions of one policy in each engine.

    Attributes:
        at_once: request ids in order, by engine, all submitted before the first step.
        recorded: likewise at recorded times.
    """

    at_once: dict[str, list[str]]
    recorded: dict[str, list[str]]

    def are_identical(self) -> bool:
        """Whether the three orders are one, where all were submitted at once."""
        return len({tuple(order) for order in self.at_once.values()}) == 1

    def rank_correlation(self, engine: str) -> float:
        """Kendall's tau of an engine's order at recorded times with vLLM's."""
        from scipy.stats import kendalltau

        place = {name: rank for rank, name in enumerate(self.recorded["vllm"])}
        return float(kendalltau(range(len(place)), [place[name] for name in self.recorded[engine]]).statistic)


def compare_engines(
    base: ReplayOptions, policies: Sequence[str], rate: float
) -> Iterator[tuple[str, Orders]]:
    """Run each policy six times; the runs lie beside each other in `base.out`.

    Args:
        base: trace, model, limits and predictor; `out` is the directory of the study.
        rate: mean rate of the recorded times, requests a second.
    """
    base = replace(base, **VLLM_DEFAULTS, force=True, max_lag_share=math.inf)
    for policy in policies:
        orders = [_orders(replace(base, policy=policy, rate=each)) for each in (math.inf, rate)]
        yield policy, Orders(*orders)


def _orders(options: ReplayOptions) -> dict[str, list[str]]:
    runs: dict[str, Run] = {}
    for engine in ENGINES:
        out = options.out / run_name(options.policy, engine, options.rate == math.inf)
        run = replace(options, mode=engine, out=out)
        if engine == "sim":
            run = replace(run, cost_model=_fitted(runs["real"], out.with_suffix(".json")))
        replay(run)
        runs[engine] = read_run(out)
    return {engine: first_admissions(run) for engine, run in runs.items()}


def run_name(policy: str, engine: str, at_once: bool) -> str:
    """Name of a run's directory."""
    return f"{policy.rpartition(':')[2]}-{engine}{'-at-once' if at_once else ''}"


def first_admissions(run: Run) -> list[str]:
    """Request ids in the order in which they were first scheduled."""
    return list(run.events.loc[run.events["event"] == "scheduled", "request_id"])


def _fitted(run: Run, path: Path) -> str:
    path.write_text(json.dumps(fit_linear([run]).describe(), indent=2) + "\n", encoding="utf-8")
    return str(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, print its table and write its report; return 1 if an order differs that must not."""
    options = _parser().parse_args(arguments)
    base = ReplayOptions(
        trace=options.trace,
        out=options.out,
        model=options.model,
        requests=options.requests,
        window=options.window,
        length_scale=options.length_scale,
        predictor=options.predictor,
        block_size=options.block_size,
        num_gpu_blocks=options.num_gpu_blocks,
        max_model_len=options.block_size * options.num_gpu_blocks,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
    )
    same = True
    for policy, orders in compare_engines(base, options.policies, options.rate):
        same &= orders.are_identical()
        taus = ", ".join(f"{engine} {orders.rank_correlation(engine):.3f}" for engine in ("real", "sim"))
        print(
            f"{policy}: all at once, {len(orders.at_once['vllm'])} first admissions "
            f"{'identical' if orders.are_identical() else 'DIFFERENT'} in {', '.join(ENGINES)}; "
            f"at recorded times Kendall's tau with vLLM: {taus}",
            flush=True,
        )
    names = [run_name(policy, engine, False) for policy in options.policies for engine in ENGINES]
    runs = [read_run(options.out / name) for name in names]
    print_summaries([summarize(run) for run in runs], names)
    print(f"Report: {write_report(runs, options.out / 'report.html', force=True)}")
    return 0 if same else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.three_engines", description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint directory")
    parser.add_argument("--out", type=Path, required=True, help="directory of the runs and the report")
    parser.add_argument("--policies", nargs="+", default=["fcfs", "srpt", "vtc"])
    parser.add_argument("--predictor", default="perfect")
    parser.add_argument("--requests", type=int, default=None)
    parser.add_argument("--window", default=None)
    parser.add_argument("--length-scale", type=float, default=0.05)
    parser.add_argument("--rate", type=float, default=2.0, help="of the recorded times, requests a second")
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--num-gpu-blocks", type=int, default=32)
    parser.add_argument("--max-num-seqs", type=int, default=4)
    parser.add_argument("--max-num-batched-tokens", type=int, default=128)
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TinyLLMError as error:
        print(f"three_engines: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
