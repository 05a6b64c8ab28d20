"""Figures of requests and runs: a run worked by hand, and what must hold for any."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.bench.figures import figures, max_concurrency, percentiles, request_figures
from experiments.bench.floor import Ceilings, Floor
from experiments.bench.jobs import BenchRequest, JobResult, Memory, Served
from experiments.bench.limits import judged, limits_alone
from experiments.bench.raw import RunKey, read_raw, write_run
from experiments.bench.suite import Limits
from experiments.bench.workloads import Workload
from sim.shapes import SHAPES

MEMORY = Memory(1, 1, 1, 1)


def _raw(directory: Path, workload: Workload, served: list[Served]) -> pd.DataFrame:
    write_run(directory, RunKey(0, 0, 0, "tinyllm"), workload, JobResult(served, MEMORY))
    return read_raw(directory)


@pytest.fixture
def by_hand(tmp_path: Path) -> pd.DataFrame:
    """Three requests at 0, 1 and 2 s; the first warms up, the last is answered with an error."""
    requests = tuple(BenchRequest(name, [1] * 4, 3, float(at)) for at, name in enumerate("abc"))
    served = [
        Served("a", 0.0, 0.5, [1.0, 2.0, 3.0], [1, 2, 3], "length"),
        Served("b", 1.25, 1.5, [2.0, 2.5, 5.0], [1, 2, 3], "length"),
        Served("c", 2.0, None, [], [], None, "no room"),
    ]
    workload = Workload("w/0.50", "w", "open-loop", requests, num_warmup=1, load=0.5)
    return request_figures(_raw(tmp_path, workload, served))


def test_latency_counts_from_the_arrival(by_hand: pd.DataFrame) -> None:
    b = by_hand.set_index("request_id").loc["b"]
    assert (b.ttft, b.tpot, b.e2e, b.queue, b.lag) == (1.0, 1.5, 4.0, 0.5, 0.25)
    assert list(by_hand["completed"]) == [True, True, False]
    assert by_hand["ttft"].isna().tolist() == [False, False, True]


def test_a_run_worked_by_hand(by_hand: pd.DataFrame) -> None:
    found = figures(by_hand)
    assert (found["requests"], found["completed"], found["output_tokens"]) == (2, 1, 3)
    # From b's arrival to its last token; a is warm-up, c never ends.
    assert found["wall_s"] == 4.0 and found["req_s"] == 0.25 and found["tok_s"] == 0.75
    assert found["ttft_p50"] == found["ttft_p99"] == 1.0
    assert found["decode_tok_s"] is None
    assert found["max_concurrency"] == 2


def test_decode_speed_counts_from_the_last_first_token(tmp_path: Path) -> None:
    requests = (BenchRequest("a", [1], 4), BenchRequest("b", [1], 3))
    served = [
        Served("a", 0.0, 0.0, [1.0, 2.0, 3.0, 4.0], [1, 2, 3, 4], "length"),
        Served("b", 0.0, 0.0, [2.0, 3.0, 4.0], [1, 2, 3], "length"),
    ]
    found = figures(request_figures(_raw(tmp_path, Workload("w", "w", "offline", requests), served)))
    assert found["decode_tok_s"] == 4 / 2.0 and found["tok_s"] == 7 / 4.0


def test_a_request_without_an_answer_is_a_row_that_did_not_complete(tmp_path: Path) -> None:
    raw = _raw(tmp_path, Workload("w", "w", "offline", (BenchRequest("a", [1], 4),)), [])
    found = figures(request_figures(raw))
    assert (found["requests"], found["completed"], found["wall_s"], found["tok_s"]) == (1, 0, 0.0, None)
    assert raw["error"].tolist() == ["the engine did not answer"]


@given(values=st.lists(st.floats(0, 1e6) | st.just(math.nan), max_size=30))
def test_percentiles_rise_and_lie_within(values: list[float]) -> None:
    found = list(percentiles(pd.Series(values, dtype=float)).values())
    known = [value for value in values if not math.isnan(value)]
    if not known:
        assert found == [None] * 3
    else:
        assert min(known) <= found[0] <= found[1] <= found[2] <= max(known)  # type: ignore[operator]


@given(spans=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=12))
def test_max_concurrency_is_that_of_a_count_at_every_instant(spans: list[tuple[int, int]]) -> None:
    run = pd.DataFrame(
        {"arrival_s": [float(a) for a, _ in spans], "finished": [float(a + d) for a, d in spans]}
    )
    most = max(sum(a <= t < a + d for a, d in spans) for t in range(41))
    assert max_concurrency(run) == most


def test_limits_are_multiples_of_the_unloaded_engine_at_each_length() -> None:
    columns = ["group", "kind", "prompt_tokens", "ttft", "tpot", "completed"]
    rows = [
        ("s", "probe", 10, 0.1, 0.02, True),
        ("s", "probe", 30, 0.5, 0.04, True),
        ("s", "open-loop", 20, 0.60, 0.03, True),
        ("s", "open-loop", 20, 0.61, 0.03, True),
        ("s", "open-loop", 20, 0.1, 0.07, True),
        ("s", "open-loop", 20, 0.1, math.nan, True),
        ("s", "open-loop", 5, 0.2, 0.01, True),
        ("s", "open-loop", 20, 0.1, 0.01, False),
        ("s", "capacity", 20, 0.1, 0.01, True),
    ]
    requests = pd.DataFrame(rows, columns=columns)
    limits = limits_alone(requests, Limits(ttft=2.0, tpot=2.0))
    assert [(row["prompt_tokens"], row["ttft"], row["tpot"]) for row in limits] == [
        (10, 0.2, 0.04),
        (30, 1.0, 0.08),
    ]
    # At 20 tokens the limits are half-way: 0.6 s and 60 ms; below the shortest probe they are the shortest one's.
    assert judged(requests, limits)["good"].tolist()[2:] == [True, False, False, True, True, False, None]


# ── the floor ────────────────────────────────────────────────────────────────────────────────────────


def test_the_floor_of_smollm2_has_the_published_costs() -> None:
    floor = Floor.of(SHAPES["smollm2-135m"], "float32")
    assert floor.token_flops == pytest.approx(0.2125e9, rel=0.01)
    assert floor.head_flops == pytest.approx(0.0566e9, rel=0.01)
    assert floor.step_bytes == pytest.approx(538e6, rel=0.01)
    assert floor.kv_bytes == 2 * 30 * 3 * 64 * 4


def test_a_floor_worked_by_hand() -> None:
    floor = Floor(token_flops=10.0, head_flops=4.0, pair_flops=1.0, step_bytes=100.0, kv_bytes=2.0)
    requests = [BenchRequest("a", [0] * 3, 2), BenchRequest("b", [0] * 2, 1)]
    # Prompts: 5 × 10 + 2 × 4 + (6 + 3) pairs = 67 operations beside 100 bytes; then one token on 4: 18 beside 108.
    assert floor.seconds(requests, Ceilings(1.0, 1e9)) == 67 + 18
    assert floor.seconds(requests, Ceilings(1e9, 1.0)) == 100 + 108
    assert floor.seconds(requests, Ceilings(1.0, 2.0)) == 67 + 54


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 20)), min_size=1, max_size=6))
def test_more_requests_have_a_higher_floor_and_a_batch_a_lower_one_than_its_parts(
    sizes: list[tuple[int, int]],
) -> None:
    floor, machine = Floor.of(SHAPES["smollm2-135m"], "float32"), Ceilings(150e9, 28e9)
    requests = [BenchRequest(str(n), [0] * prompt, output) for n, (prompt, output) in enumerate(sizes)]
    alone = [floor.seconds([request], machine) for request in requests]
    together = floor.seconds(requests, machine)
    assert max(alone) <= together * (1 + 1e-9) and together <= np.sum(alone) * (1 + 1e-9)
