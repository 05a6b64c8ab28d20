"""The analysis on logs that the simulator itself wrote, under preemption, chunked prompts and a prefix cache."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import timeline
from analysis.metrics import request_metrics
from analysis.summary import summarize
from analysis.tokens import token_times
from sim.cost.linear import LinearCostModel
from sim.driver import Simulation
from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.engine.record.manifest import write_manifest
from tinyllm.engine.record.reader import read_run
from tinyllm.engine.record.recorder import LogRecorder
from tinyllm.engine.record.workload import ArrivalRecord, write_workload
from tinyllm.engine.record.writer import LogWriter
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.registry import make_policy
from tinyllm.policy.scheduler import Scheduler


@pytest.fixture(scope="module")
def simulate(tmp_path_factory):
    def run(records, policy="fcfs", **config):
        path = tmp_path_factory.mktemp("runs") / policy
        path.mkdir()
        write_workload(path / "workload.parquet", records)
        write_manifest(path, {"schema_version": 1, "status": "complete", "policy": {"name": policy}})
        scheduler = Scheduler(SchedulerConfig(block_size=4, **config), make_policy(policy))
        recorder = LogRecorder(LogWriter(path), scheduler)
        simulation = Simulation(
            records,
            EngineCore(scheduler, TargetLengthProcessor(), recorder),
            LinearCostModel(base_s=0.02, per_token_s=1e-3, per_seq_s=0.0, per_context_token_s=0.0),
        )
        simulation.run()
        recorder.close(simulation.now)
        return read_run(path)

    return run


LENGTHS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=25
)


def _records(lengths):
    arrivals = np.cumsum([gap for gap, _, _ in lengths]).tolist()
    return [
        ArrivalRecord(
            f"r{i}", i, arrival * 10_000_000, prompt, output, output, predicted_output_tokens=output
        )
        for i, (arrival, (_, prompt, output)) in enumerate(zip(arrivals, lengths, strict=True))
    ]


@settings(max_examples=20, deadline=None)
@given(lengths=LENGTHS, policy=st.sampled_from(["fcfs", "srpt"]), blocks=st.integers(12, 40))
def test_every_token_of_every_request_is_found_between_its_first_and_its_last(
    simulate, lengths, policy, blocks
):
    run = simulate(
        _records(lengths), policy, num_gpu_blocks=blocks, max_num_seqs=6, max_num_batched_tokens=16
    )
    times = token_times(run)
    for i, row in enumerate(run.requests.to_dict("records")):
        own = times.time[times.request == i]
        assert len(own) == row["output_tokens"]
        if len(own):
            assert (own[0], own[-1]) == (row["first_token"], row["finished"])
            assert (np.diff(own) > 0).all()


@settings(max_examples=20, deadline=None)
@given(lengths=LENGTHS, policy=st.sampled_from(["fcfs", "srpt"]), blocks=st.integers(12, 40))
def test_the_curves_agree_with_the_engine_s_counts_after_each_step(simulate, lengths, policy, blocks):
    run = simulate(
        _records(lengths), policy, num_gpu_blocks=blocks, max_num_seqs=6, max_num_batched_tokens=16
    )
    running = timeline.running(run)
    for step in run.steps.to_dict("records"):
        level = running.values[np.searchsorted(running.times, step["start"], side="right") - 1]
        assert level == step["num_running"] + step["finished"]


def test_a_small_pool_preempts_and_the_summary_says_what_that_cost(simulate):
    records = _records([(0, 20, 30)] * 8)
    small, large = (
        simulate(records, num_gpu_blocks=blocks, max_num_seqs=8, max_num_batched_tokens=64)
        for blocks in (30, 400)
    )
    tight, roomy = summarize(small), summarize(large)
    assert roomy["preemptions_per_request"] == roomy["recomputed_share"] == 0
    assert tight["preemptions_per_request"] == pytest.approx(small.steps["preempted"].sum() / 8)
    computed = (small.steps["prefill_tokens"] + small.steps["decode_tokens"]).sum()
    assert tight["recomputed_share"] == pytest.approx(small.requests["recomputed_tokens"].sum() / computed)
    assert 0 < tight["recomputed_share"] < 1
    assert tight["longest_stall_max"] > roomy["longest_stall_max"]
    assert tight["peak_blocks_used"] <= tight["num_gpu_blocks"] == 30


def test_an_overloaded_engine_serves_late_arrivals_late_not_slowly(simulate):
    # Case T2 through the whole engine: one seat, half a second of service, ten arrivals a second.
    records = [ArrivalRecord(f"r{i}", i, i * 100_000_000, 1, 25, 25) for i in range(8)]
    frame = request_metrics(simulate(records, num_gpu_blocks=100, max_num_seqs=1))
    service = 25 * 0.021
    assert frame["e2e"].tolist() == pytest.approx([service + i * (service - 0.1) for i in range(8)])
