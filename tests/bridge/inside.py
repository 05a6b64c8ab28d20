"""Runs inside vLLM's environment, as a child of the tests: prints what they look at as one JSON line."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from tinyllm.bridge.differential import Tally, compare
from tinyllm.bridge.headless import HeadlessVLLM
from tinyllm.bridge.lockstep import Lockstep
from tinyllm.bridge.options import VLLM_RULES
from tinyllm.bridge.pairs import VLLM_PAIRS, Pair
from tinyllm.conformance.world import Arrival, World
from tinyllm.errors import InputError
from tinyllm.policy.config import SchedulerConfig

SEEDS, STEPS = range(20), 1_000
POLICIES = ("fcfs", "priority", "srpt", "vtc", "mlfq", "edf", "user_policy:TakesTurns")


def lockstep() -> dict[str, Any]:
    """A short run of each combination."""
    results = {}
    for policy, pair in VLLM_PAIRS.items():
        for caching in (False, True):
            tally = Tally()
            found = compare(pair, caching, SEEDS, STEPS, tally)
            results[f"{policy}, {'with' if caching else 'without'} prefix cache"] = vars(tally) | {
                "difference": str(found)
            }
    return results


def bridged() -> dict[str, Any]:
    """Policies of ours and a user's own inside vLLM."""
    results = {}
    for policy in POLICIES:
        tally = Tally()
        found = compare(Pair(policy, bridged=True), True, SEEDS, 600, tally)
        results[policy] = vars(tally) | {"difference": str(found)}
    return results


def without_a_rule() -> dict[str, Any]:
    """The difference that each rule of vLLM's makes where ours does without it."""
    results = {}
    for rule in VLLM_RULES:
        found = compare(VLLM_PAIRS["fcfs"], True, range(40), 4_000, Tally(), [rule])
        assert found is not None
        results[rule] = {"aspect": found[1].aspect, "requests": len(found[0].arrivals)}
    return results


def taken_back() -> dict[str, Any]:
    """vLLM schedules a chunk of `low`, takes it back for `high` in the same step, and leaves its block cached."""
    config = VLLM_RULES | {
        "block_size": 4,
        "num_gpu_blocks": 11,
        "max_num_seqs": 2,
        "max_num_batched_tokens": 16,
        "long_prefill_token_threshold": 6,
        "enable_prefix_caching": True,
    }
    low = Arrival("low", 0, 34, 3, 3, None, {"max_tokens": 3, "priority": 9})
    high = Arrival("high", 1, 8, 6, 6, None, {"max_tokens": 6, "priority": 0})
    run = Lockstep(World(config, [low, high]), VLLM_PAIRS["priority"])
    return {"difference": run.run(100), "explained": run.explained}


def recorded() -> dict[str, Any]:
    """Runs inside vLLM's scheduler that keep a log, in a pool so small that it preempts."""
    logs = {}
    for caching in (False, True):
        log = Path(sys.argv[1], "cached" if caching else "uncached")
        config = SchedulerConfig(
            block_size=4,
            num_gpu_blocks=12,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            admission="first-chunk",
            enable_prefix_caching=caching,
        )
        vllm = HeadlessVLLM(config, bridge={"policy": "fcfs", "log": str(log)})
        for i in range(8):
            vllm.add(f"r{i}", [7] * 9 + [20 + i] * (i + 1), 6 + i, record={"tenant": "ab"[i % 2]})
        while vllm.scheduler.requests:
            rows = vllm.schedule().rows
            requests = [vllm.scheduler.requests[name] for name, _ in rows]
            vllm.finish({r.request_id: 50 for r in requests if r.num_computed_tokens == r.num_tokens})
            vllm.scheduler.now += 1_000_000
        vllm.scheduler.shutdown()
        logs[log.name] = str(log)
    return logs


def refused() -> dict[str, str]:
    """What a scheduler that can't serve a policy says."""
    said = {}
    for name, policy, bridge in (
        ("vllm_policy", "priority", {}),
        ("setting", "fcfs", {"polcy": "srpt"}),
        ("policy", "fcfs", {"policy": "first"}),
        ("overtake", "fcfs", {"policy": "user_policy:Overtakes"}),
    ):
        try:
            HeadlessVLLM(SchedulerConfig(max_num_seqs=4), policy, bridge)
        except InputError as error:
            said[name] = str(error)
    return said


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    checks = (lockstep, bridged, without_a_rule, taken_back, recorded, refused)
    print(json.dumps({check.__name__: check() for check in checks}))
