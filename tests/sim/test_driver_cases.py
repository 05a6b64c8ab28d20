"""Cases from the field that need a clock: lag behind an open loop, twice the same id, long preemption chains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments.run_directory import RunDirectory
from sim.cost import LinearCostModel
from sim.driver import Simulation
from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.engine.record.reader import Run, read_run
from tinyllm.engine.record.recorder import LogRecorder
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.integrity import check_integrity
from tinyllm.policy.registry import make_policy
from tinyllm.policy.scheduler import Scheduler

MS = 1_000_000

Simulate = Callable[..., Run]


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    """Run records under the options of a SchedulerConfig and read the log back."""

    def run(records: list[ArrivalRecord], policy: str = "fcfs", step_s: float = 0.01, **options: Any) -> Run:
        scheduler = Scheduler(SchedulerConfig(**options), make_policy(policy))
        directory = RunDirectory(tmp_path / "run", {"policy": {"name": policy}})
        directory.write_workload(records)
        recorder = LogRecorder(directory.open_log(), scheduler)
        core = EngineCore(scheduler, TargetLengthProcessor(), recorder)
        simulation = Simulation(records, core, LinearCostModel(step_s, 0.0, 0.0, 0.0))
        simulation.run()
        recorder.close(simulation.now)
        directory.finish("complete")
        assert check_integrity(scheduler) is None
        assert scheduler.kv.pool.num_used == 0
        return read_run(directory.path)

    return run


def request(number: int, arrival_ns: int, prompt: int, output: int, name: str | None = None) -> ArrivalRecord:
    return ArrivalRecord(name or f"r{number}", number, arrival_ns, prompt, output, output)


def test_t2_latency_counts_from_the_intended_arrival_of_an_open_loop(simulate: Simulate) -> None:
    # 8 requests at 10/s that take 500 ms each, one at a time: the last one waits for seconds.
    records = [request(n, n * 100 * MS, prompt=4, output=5) for n in range(8)]
    requests = simulate(records, step_s=0.1, max_num_seqs=1).requests.sort_values("source_row")
    e2e = requests["finished"] - requests["arrival"]
    assert e2e.tolist() == pytest.approx([0.5 + 0.4 * n for n in range(8)])
    assert requests["submitted"].tolist() == requests["arrival"].tolist()


def test_s9_first_times_win_over_a_preemption_and_no_interval_is_negative(simulate: Simulate) -> None:
    records = [request(n, n * MS, prompt=9, output=12) for n in range(6)]
    run = simulate(records, num_gpu_blocks=12, block_size=4, max_num_batched_tokens=16)
    rows = run.requests.set_index("request_id")
    assert rows["preemptions"].sum() >= 3
    times = run.events.groupby(["request_id", "event"])["time"]
    assert (times.min().unstack()["scheduled"] == rows["first_scheduled"].sort_index()).all()
    assert times.count().unstack()[["queued", "scheduled", "first_token", "finished"]].eq(1).all(axis=None)
    order = ["arrival", "submitted", "first_scheduled", "first_token", "finished"]
    assert (rows[order].astype(float).diff(axis=1).iloc[:, 1:] >= 0).all(axis=None)
    counts = times.count().unstack().fillna(0)
    assert (counts["resumed"] == counts["preempted"]).all()


def test_s10_the_same_id_twice_is_refused_and_the_first_one_is_unaffected(simulate: Simulate) -> None:
    twice = [request(0, 0, 4, 6, "same"), request(1, 20 * MS, 9, 2, "same")]
    run = simulate(twice)
    first, second = (run.requests[run.requests["source_row"] == row].iloc[0] for row in (0, 1))
    assert (first["finish_reason"], first["output_tokens"], first["finished"]) == ("length", 6, 0.06)
    assert second["finish_reason"] == "rejected"
    assert "not finished yet" in second["error"]
    assert pd.isna(second["first_scheduled"]) and pd.isna(second["finished"])


def test_an_id_may_come_again_once_the_first_one_has_ended(simulate: Simulate) -> None:
    run = simulate([request(0, 0, 4, 2, "same"), request(1, 500 * MS, 9, 2, "same")])
    assert run.requests["finish_reason"].tolist() == ["length", "length"]


def test_s2_a_request_over_the_pool_is_refused_alone_and_the_next_one_runs(simulate: Simulate) -> None:
    run = simulate([request(0, 0, 100, 1), request(1, 0, 5, 3)], num_gpu_blocks=4, block_size=16)
    assert run.requests.set_index("request_id")["finish_reason"].to_dict() == {
        "r0": "rejected",
        "r1": "length",
    }
    assert run.requests["error"].dropna().tolist() == ["needs 7 KV blocks for 100 tokens, the pool has 4"]


@pytest.mark.parametrize("policy", ["fcfs", "srpt", "vtc", "priority"])
def test_s11_a_flood_over_a_small_pool_ends_with_bounded_preemptions(simulate: Simulate, policy: str) -> None:
    records = [request(n, n * MS // 2, prompt=512, output=256) for n in range(200)]
    run = simulate(records, policy, num_gpu_blocks=960, block_size=16, max_num_batched_tokens=2048)
    assert run.requests["finish_reason"].eq("length").all()
    assert run.requests["output_tokens"].eq(256).all()
    assert run.requests["preemptions"].sum() < 400, "twice a request at most, on the mean"


def test_a_refused_prompt_of_absurd_length_costs_no_memory() -> None:
    hashed: list[str] = []

    def hashes(record: ArrivalRecord) -> list[int]:
        hashed.append(record.request_id)
        return [1, 2]

    config = SchedulerConfig(num_gpu_blocks=10, block_size=4, enable_prefix_caching=True)
    scheduler = Scheduler(config, make_policy("fcfs"))
    core = EngineCore(scheduler, TargetLengthProcessor(block_size=4))
    records = [request(0, 0, 10**15, 1), request(1, 0, 9, 1)]
    Simulation(records, core, LinearCostModel(0.01, 0.0, 0.0, 0.0), hashes).run()
    assert hashed == ["r1"]
