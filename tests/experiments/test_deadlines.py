"""`--ttft-slo` and `--e2e-slo`: absolute deadlines of requests, from the trace to the log and to the policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.options import ReplayOptions
from experiments.replay import replay
from tinyllm.engine.record.reader import read_run
from tinyllm.errors import InputError


def test_deadlines_are_the_arrival_and_the_slo_and_stand_in_the_log(
    make_options: Callable[..., ReplayOptions],
) -> None:
    run = read_run(replay(make_options(30, ttft_slo=0.25, e2e_slo=2.5, speedup=3.0)).directory)
    workload = run.workload
    assert (workload["ttft_deadline_ns"] - workload["arrival_ns"] == 250_000_000).all()
    assert (workload["e2e_deadline_ns"] - workload["arrival_ns"] == 2_500_000_000).all()


def test_without_an_slo_nothing_is_due(make_options: Callable[..., ReplayOptions]) -> None:
    workload = read_run(replay(make_options(5, ttft_slo=0.25)).directory).workload
    assert workload["ttft_deadline_ns"].notna().all()
    assert workload["e2e_deadline_ns"].isna().all()


@pytest.mark.parametrize("slo", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_an_slo_out_of_range_is_one_line_and_nothing_is_written(
    make_options: Callable[..., ReplayOptions], tmp_path: Path, slo: float
) -> None:
    with pytest.raises(InputError, match=r"^--e2e-slo .*: give seconds"):
        replay(make_options(5, e2e_slo=slo))
    assert not (tmp_path / "run").exists()
