"""VTC's bound on the service gap of two backlogged tenants, on a simulated overload (Sheng et al., OSDI 2024)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim.cost.linear import LinearCostModel
from sim.driver import Simulation
from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.policy import Request, Scheduler, SchedulerConfig, SchedulingPolicy
from tinyllm.policy.fcfs import FCFS
from tinyllm.policy.vtc import VTC

SEED = 20240710
WP, WQ = 1, 2
LONGEST_PROMPT, LONGEST_OUTPUT = 100, 60
CONFIG = SchedulerConfig(
    max_num_seqs=8,
    max_num_batched_tokens=128,
    num_gpu_blocks=64,
    admission="reserve-output",
    preemption="never",
)

# The most tokens that the batch can hold and still owe: a slot each, and for every seat the last sampled
# token, which needs none.
M = CONFIG.num_gpu_blocks * CONFIG.block_size + CONFIG.max_num_seqs
U = WP * LONGEST_PROMPT + WQ * M
"""1 · 100 + 2 · (64 · 16 + 8) = 2,164 weighted tokens: how far the counters of backlogged tenants can part.

Let f be ahead of g while both have waiting requests, and look at f's last admission: f was chosen, so it was
not ahead then. All that f has been charged since is what its residents of that moment still owed, the one just
admitted included. The paper charges a prompt as a whole at admission and so takes the larger of wp · L_input
(one prompt) and wq · M (the outputs of a full batch). Here prompts are charged a chunk at a time, so at that
moment residents may still owe prompts *and* outputs, and the two terms add up. That the residents never come
to hold more than M tokens together needs their whole length to be reserved at admission; with first-chunk
admission and preemption the batch can turn over without an admission being charged, and nothing is proven.

The service W between any t1 and t2 is the difference of two counters' differences: |W_f − W_g| ≤ 2 · U.
"""


class Measured(SchedulingPolicy):
    """Mixed into a policy: notes W_f − W_g at each charge while both tenants have waiting requests."""

    def __init__(self) -> None:
        super().__init__()
        self.service = {"f": 0, "g": 0}
        self.waiting = {"f": 0, "g": 0}
        self.gaps: list[int] = []

    def on_arrival(self, view: Request, now: int) -> None:
        super().on_arrival(view, now)
        self.waiting[str(view.tenant)] += 1

    def on_tokens(self, view: Request, prefill: int, decode: int, now: int) -> None:
        super().on_tokens(view, prefill, decode, now)
        if prefill and view.num_computed_tokens == 0:
            self.waiting[str(view.tenant)] -= 1
        self.service[str(view.tenant)] += WP * prefill + WQ * decode
        if min(self.waiting.values()) > 0:
            self.gaps.append(self.service["f"] - self.service["g"])

    def largest_gap(self) -> int:
        """The largest |W_f(t1, t2) − W_g(t1, t2)| over all t1 < t2."""
        return max(self.gaps) - min(self.gaps)


class MeasuredVTC(Measured, VTC):
    pass


class MeasuredFCFS(Measured, FCFS):
    pass


def overload() -> list[ArrivalRecord]:
    """Tenant f sends 40 requests a second, g 12; the engine can serve about 10 in all."""
    rng = np.random.default_rng(SEED)
    rows: list[Any] = []
    for tenant, rate, count in (("f", 40.0, 1_200), ("g", 12.0, 360)):
        times = np.cumsum(rng.exponential(1e9 / rate, count)).astype(int)
        prompts = rng.integers(10, LONGEST_PROMPT, count, endpoint=True)
        outputs = rng.integers(5, LONGEST_OUTPUT, count, endpoint=True)
        rows += zip(times.tolist(), prompts.tolist(), outputs.tolist(), [tenant] * count, strict=True)
    return [
        ArrivalRecord(f"r{i}", i, at, prompt, LONGEST_OUTPUT, output, tenant=tenant)
        for i, (at, prompt, output, tenant) in enumerate(sorted(rows))
    ]


def run(policy: Measured) -> Measured:
    core = EngineCore(Scheduler(CONFIG, policy), TargetLengthProcessor())
    Simulation(overload(), core, LinearCostModel(0.020, 5e-5, 0.0, 0.0)).run()
    assert core.num_unfinished == 0
    return policy


@pytest.fixture(scope="module")
def fair() -> Measured:
    return run(MeasuredVTC())


@pytest.fixture(scope="module")
def unfair() -> Measured:
    return run(MeasuredFCFS())


def test_two_backlogged_tenants_are_served_equally_within_the_proven_bound(fair: Measured) -> None:
    assert len(fair.gaps) > 10_000
    # Long enough for the bound to say something: service of several times 2 · U while both were waiting.
    assert fair.service["g"] > 5 * 2 * U
    assert fair.largest_gap() <= 2 * U


def test_first_come_first_served_breaks_that_bound_on_the_same_workload(unfair: Measured) -> None:
    assert unfair.largest_gap() > 10 * 2 * U


def test_the_tenant_that_sends_more_gains_nothing_while_both_wait(fair: Measured, unfair: Measured) -> None:
    assert abs(fair.gaps[-1]) <= U
    # First come, first served gives them what they send, 40 : 12.
    assert unfair.gaps[-1] > 0.4 * sum(unfair.service.values())
