"""vLLM's Scheduler and ours side by side in random worlds: `python -m tinyllm.bridge.differential`.

Runs in an environment that has vLLM (`make peer-vllm`); no model, no weights. The smallest world in which the
two differ is printed, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from tinyllm.bridge.options import VLLM_RULES
from tinyllm.bridge.pairs import VLLM_PAIRS, Pair
from tinyllm.bridge.versions import check_version
from tinyllm.bridge.worlds import draw_world
from tinyllm.conformance.simpler import simplest
from tinyllm.conformance.text import world_lines
from tinyllm.conformance.world import World
from tinyllm.errors import InputError

if TYPE_CHECKING:
    from tinyllm.bridge.lockstep import Difference

MOST_STEPS = 2_000
"""Of one world: far more than any of them needs."""


@dataclass
class Tally:
    """What was compared."""

    seeds: int = 0
    worlds: int = 0
    steps: int = 0
    preemptions: int = 0
    hits: int = 0
    aborts: int = 0
    explained: int = 0


def compare(
    pair: Pair,
    prefix_caching: bool,
    seeds: Sequence[int],
    steps: int,
    tally: Tally,
    without: Sequence[str] = (),
) -> tuple[World, Difference] | None:
    """Step through random worlds until so many steps were compared; the first difference, made small, if any.

    Args:
        pair: the two schedulers.
        seeds: each draws worlds of its own, for an equal share of the steps.
        tally: counts along.
        without: rules of vLLM's (`VLLM_RULES`) that ours is to leave at their defaults.
    """
    for number, seed in enumerate(seeds, start=1):
        tally.seeds += 1
        for world in _worlds(seed, prefix_caching, without):
            difference = _run(world, pair, tally)
            if difference is not None:
                return _smallest(world, pair)
            if tally.steps * len(seeds) >= steps * number:
                break
    return None


def _worlds(seed: int, prefix_caching: bool, without: Sequence[str]) -> Iterator[World]:
    rng = Random(seed)
    while True:
        world = draw_world(rng, prefix_caching)
        rules = {name: value for name, value in VLLM_RULES.items() if name not in without}
        yield world._replace(config=world.config | rules)


def _run(world: World, pair: Pair, tally: Tally) -> Difference | None:
    from tinyllm.bridge.lockstep import Lockstep

    lockstep = Lockstep(world, pair)
    difference = lockstep.run(MOST_STEPS)
    tally.worlds += 1
    tally.steps += lockstep.num_steps
    tally.preemptions += lockstep.num_preemptions
    tally.hits += lockstep.num_hits
    tally.aborts += lockstep.num_aborts
    tally.explained += lockstep.explained is not None
    return difference


def _smallest(world: World, pair: Pair) -> tuple[World, Difference]:
    def differs(candidate: World) -> bool:
        try:
            return _run(candidate, pair, Tally()) is not None
        except (InputError, ValueError):
            return False  # a configuration that one of the two refuses

    small = simplest(world, differs)
    difference = _run(small, pair, Tally())
    assert difference is not None
    return small, difference


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print a line for each combination, and return the exit code."""
    options = _parser().parse_args(arguments)
    # vLLM warns about configurations that no one would serve with, once a world.
    logging.disable(logging.WARNING)
    version = check_version()
    print(f"vLLM {version}, async scheduling off; compared after every step")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    pairs = {name: VLLM_PAIRS[name] for name in options.policy}
    pairs |= {f"{name} in vLLM": Pair(name, bridged=True) for name in options.bridged}
    for name, pair in pairs.items():
        for caching in options.prefix_caching:
            tally = Tally()
            found = compare(pair, caching == "on", seeds, options.steps, tally, options.without)
            print(_line(name, caching, tally, found is not None), flush=True)
            if found is not None:
                world, difference = found
                for line in (str(difference), *world_lines(world)):
                    print(f"     {line}")
                return 1
    return 0


def _line(name: str, caching: str, tally: Tally, differs: bool) -> str:
    return (
        f"{'DIFF' if differs else 'ok  '} {name:<14} prefix cache {caching:<4} {tally.seeds:,} seeds, "
        f"{tally.worlds:,} worlds, {tally.steps:,} steps, {tally.preemptions:,} preemptions, "
        f"{tally.hits:,} prefix hits, {tally.aborts:,} aborts, {tally.explained} explained differences"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tinyllm.bridge.differential", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="random streams of worlds")
    parser.add_argument("--steps", type=int, default=20_000, help="steps to compare in each combination")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--policy", nargs="*", choices=tuple(VLLM_PAIRS), default=list(VLLM_PAIRS), help="vLLM's own policies"
    )
    parser.add_argument(
        "--bridged", nargs="+", default=[], metavar="POLICY", help="policies of ours, run inside vLLM"
    )
    parser.add_argument("--prefix-caching", nargs="+", choices=("off", "on"), default=["off", "on"])
    parser.add_argument(
        "--without",
        nargs="+",
        choices=tuple(VLLM_RULES),
        default=[],
        help="rules of vLLM's that ours is to do without, to see what they change",
    )
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(f"differential: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
