"""Case S12: many more concurrent requests than the pool has room for must not bring the engine down."""

from __future__ import annotations

import pytest

from sim.cost.linear import LinearCostModel
from sim.driver import Simulation
from sim.prefix import prompt_hasher
from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.policy import POLICIES, Scheduler, SchedulerConfig, make_policy

REQUESTS, PROMPT, OUTPUT, BLOCK = 1_024, 512, 128, 16
ROOM_FOR_68 = 68 * (PROMPT + OUTPUT) // BLOCK
ROOM_FOR_ALL = REQUESTS * (PROMPT + OUTPUT) // BLOCK


def throughput(policy: str, *, concurrent: int, num_gpu_blocks: int) -> float:
    """Output tokens a second for 1,024 requests that come at once and share half of their prompts."""
    blocks = PROMPT // BLOCK
    shared = tuple(range(blocks // 2))
    records = []
    for i in range(REQUESTS):
        own = tuple(blocks * (i + 1) + j for j in range(blocks - len(shared)))
        records.append(ArrivalRecord(f"r{i}", i, 0, PROMPT, OUTPUT, OUTPUT, OUTPUT, prefix_ids=shared + own))
    config = SchedulerConfig(
        max_num_seqs=concurrent, num_gpu_blocks=num_gpu_blocks, enable_prefix_caching=True
    )
    core = EngineCore(Scheduler(config, make_policy(policy)), TargetLengthProcessor(block_size=BLOCK))
    run = Simulation(records, core, LinearCostModel(0.020, 5e-5, 0.0, 0.0), prompt_hasher(BLOCK, BLOCK))
    run.run()
    assert core.num_unfinished == 0
    return REQUESTS * OUTPUT / (run.now / 1e9)


@pytest.mark.slow
@pytest.mark.parametrize("policy", list(POLICIES))
def test_s12_a_thousand_concurrent_requests_with_room_for_68_are_served_as_fast_as_256(policy: str) -> None:
    crowded = throughput(policy, concurrent=1_024, num_gpu_blocks=ROOM_FOR_68)
    fewer = throughput(policy, concurrent=256, num_gpu_blocks=ROOM_FOR_68)
    unpressured = throughput(policy, concurrent=1_024, num_gpu_blocks=ROOM_FOR_ALL)
    assert 0.9 * fewer < crowded <= unpressured
