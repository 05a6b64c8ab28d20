"""`tinyllm bench --dry-run`: what would be run, in which order, and about how long it would take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from experiments.bench.ceilings import measuring_child
from experiments.bench.expected import OVER_FLOOR, START_S, Expected, expected_time
from experiments.bench.floor import Ceilings
from experiments.bench.plan import BLOCK_SIZE, Item, Plan

SHOWN_TURNS: Final = 12


def describe_plan(plan: Plan, machine: Ceilings | None = None) -> Iterator[str]:
    """The lines to print.

    Args:
        machine: its ceilings; None measures them, which takes a few seconds.
    """
    if machine is None:
        with measuring_child(plan.shape) as measure:
            machine = measure().ceilings()
    expected = expected_time(plan, machine)
    yield f"Suite {plan.suite.name}: {plan.suite.about}."
    yield f"Engines: {', '.join(plan.engines)}. Repeats: {plan.repeats}. Seed: {plan.options.seed}."
    yield f"KV pool: {plan.num_gpu_blocks:,} blocks of {BLOCK_SIZE} tokens."
    yield f"Longest request: {plan.max_model_len:,} tokens."
    if plan.trace is not None:
        yield f"Windows of {plan.trace.label}, {plan.trace.provenance['rows']:,} usable rows."
    yield ""
    yield f"{'workload':<24}{'requests':>9}{'prompt tokens':>15}{'output tokens':>15}{'about, s':>10}"
    for item in plan.items:
        yield _item_line(item, expected)
    yield ""
    yield "Order of the engines:"
    for number, turn in enumerate(plan.turns(plan.engines)):
        if number == SHOWN_TURNS:
            yield f"  … and {plan.repeats * len(plan.items) - SHOWN_TURNS} more, rotated in the same way"
            break
        yield f"  repeat {turn.repeat + 1}, {turn.item.name}: {', '.join(turn.engines)}"
    yield ""
    yield (
        f"Expected: about {_duration(expected.total)} for all engines and repeats: {OVER_FLOOR:g} times the floor "
        f"that {machine.flops / 1e9:.0f} GFLOP/s and {machine.bytes / 1e9:.0f} GB/s, measured just now, give, "
        f"and {START_S:g} s to start each engine."
    )


def _item_line(item: Item, expected: Expected) -> str:
    if item.workload is not None:
        rows = [(len(one.prompt_token_ids), one.max_tokens) for one in item.workload.requests]
    else:
        assert item.stream is not None
        rows = [(row.prompt_tokens, max(1, row.output_tokens)) for row in item.stream.rows]
    prompts, outputs = (sum(lengths) for lengths in zip(*rows, strict=True))
    return f"{item.name:<24}{len(rows):>9,}{prompts:>15,}{outputs:>15,}{expected.by_item[item.name]:>10.1f}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
