"""Every gate lets a right run pass, and each fails on a fault that is planted for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.bench.gates import (
    RUN_RULES,
    Gate,
    Gates,
    accounted,
    agreement,
    lengths,
    percentile_order,
    submission,
    times,
)
from experiments.bench.jobs import BenchRequest, Memory, Served
from experiments.bench.memory import memory_limit, memory_row, over_limit
from experiments.bench.workloads import Workload

WORKLOAD = Workload(
    "w",
    "w",
    "offline",
    (BenchRequest("a", [1, 2], 3), BenchRequest("b", [3], 2), BenchRequest("c", [4], 1, 0.5)),
)
RIGHT = [
    Served("a", 0.0, 0.1, [0.2, 0.3, 0.3], [7, 8, 9], "length"),
    Served("b", 0.0, 0.1, [0.2, 0.4], [7, 8], "length"),
    Served("c", 0.5, None, [0.6], [7], "length"),
]
Spoil = Callable[[list[Served]], list[Served]]


def _changed(number: int, **changes: Any) -> Spoil:
    return lambda served: [replace(one, **changes) if i == number else one for i, one in enumerate(served)]


FAULTS: dict[str, tuple[Any, Spoil, str]] = {
    "lost": (accounted, lambda served: served[1:], "request a has no answer"),
    "invented": (
        accounted,
        lambda served: [*served, replace(served[0], request_id="z")],
        "z was answered and never",
    ),
    "twice": (accounted, lambda served: [*served, served[2]], "request c was answered 2 times"),
    "short": (
        lengths,
        _changed(0, token_ids=[7, 8], token_times_s=[0.2, 0.3]),
        "request a has 2 tokens of 3",
    ),
    "long": (lengths, _changed(2, token_ids=[7, 8], token_times_s=[0.6, 0.7]), "request c has 2 tokens of 1"),
    "early end": (lengths, _changed(1, token_ids=[7], finish_reason="stop"), "request b has 1 tokens of 2"),
    "failed": (lengths, _changed(1, error="no room"), "request b failed: no room"),
    "endless": (lengths, _changed(1, finish_reason=None), "request b has no end"),
    "back in time": (
        times,
        _changed(0, token_times_s=[0.2, 0.3, 0.29]),
        "request a has times that step back",
    ),
    "before its hand-over": (times, _changed(2, token_times_s=[0.4]), "request c has times that step back"),
    "before its scheduling": (
        times,
        _changed(1, first_scheduled_s=0.25),
        "request b has times that step back",
    ),
    "not a number": (
        times,
        _changed(2, token_times_s=[float("nan")]),
        "request c has a time that is no number",
    ),
    "a time too few": (times, _changed(0, token_times_s=[0.2, 0.3]), "request a has 2 times for 3 tokens"),
}


@pytest.mark.parametrize("rule", RUN_RULES.values(), ids=list(RUN_RULES))
def test_a_right_run_passes(rule: Any) -> None:
    assert list(rule(WORKLOAD, RIGHT)) == []


@pytest.mark.parametrize("case", FAULTS)
def test_a_planted_fault_is_found_and_named(case: str) -> None:
    rule, spoil, expected = FAULTS[case]
    faults = list(rule(WORKLOAD, spoil(RIGHT)))
    assert any(expected in fault for fault in faults), faults
    assert rule in RUN_RULES.values()


def test_with_eos_an_early_stop_is_right_and_an_empty_output_is_not() -> None:
    kept = replace(WORKLOAD, ignore_eos=False)
    assert list(lengths(kept, _changed(0, token_ids=[7], finish_reason="stop")(RIGHT))) == []
    assert list(lengths(kept, _changed(0, token_ids=[], finish_reason="stop")(RIGHT)))
    # An output that ended by its length has all of it.
    assert list(lengths(kept, _changed(0, token_ids=[7])(RIGHT)))


@given(lag=st.floats(0, 2), share=st.floats(0.01, 0.5))
def test_a_late_submission_is_found_from_the_limit_on(lag: float, share: float) -> None:
    workload = Workload("w", "w", "open-loop", (BenchRequest("a", [1], 1, 1.0),))
    served = [Served("a", 1.0 + lag, None, [5.0], [7], "length")]
    found = list(submission(workload, served, share))
    assert bool(found) == ((1.0 + lag) - 1.0 > max(0.05, share * 4.0))


def test_a_submission_before_its_time_is_found() -> None:
    assert list(submission(WORKLOAD, _changed(2, submitted_s=0.4)(RIGHT), 0.05)) == [
        "request c was handed over before it was due"
    ]


numbers = st.lists(st.floats(0, 100), min_size=3, max_size=3)


@given(values=numbers)
def test_percentiles_have_to_rise(values: list[float]) -> None:
    row = dict(zip(("ttft_p50", "ttft_p95", "ttft_p99"), values, strict=True))
    assert bool(list(percentile_order(row))) == (sorted(values) != values)


def test_percentiles_are_all_there_or_none() -> None:
    assert list(percentile_order({"queue_p50": None, "queue_p95": None, "queue_p99": None})) == []
    assert list(percentile_order({"queue_p50": 1.0, "queue_p95": None, "queue_p99": 2.0}))


tokens = st.lists(st.integers(0, 3), min_size=1, max_size=6).map(tuple)


@given(ours=tokens, theirs=tokens)
def test_agreement_names_the_first_difference_with_both_tokens(ours: Any, theirs: Any) -> None:
    found = list(agreement({"r0": ours}, {"r0": theirs}))
    if ours == theirs:
        assert found == []
        return
    position = next(i for i in range(7) if ours[i : i + 1] != theirs[i : i + 1])
    pair = " and ".join(str(each[position]) if position < len(each) else "none" for each in (ours, theirs))
    assert found == [f"request r0, output token {position}: {pair}"]


def test_engines_are_compared_in_pairs() -> None:
    gates = Gates(0.05)
    correctness = replace(WORKLOAD, kind="correctness", ignore_eos=False)
    for engine, token in (("one", 7), ("two", 7), ("three", 5)):
        gates.check_run(engine, 0, correctness, _changed(2, token_ids=[token])(RIGHT))
    gates.check_agreement()
    gate = gates.gate("engines give equal tokens")
    assert (gate.checked, gate.num_faults) == (3, 2)
    assert gate.faults == [
        "w, one, repeat 1 and three, repeat 1: request c, output token 0: 7 and 5",
        "w, two, repeat 1 and three, repeat 1: request c, output token 0: 7 and 5",
    ]


def test_memory_is_held_to_imports_weights_pool_and_allowance() -> None:
    memory = Memory(300_000_000, 100_000_000, 50_000_000, 580_000_000)
    assert memory_limit(memory) == 300_000_000 + 130_000_000 + 50_000_000 + 100_000_000
    assert list(over_limit(memory_row("tinyllm", memory, True))) == []
    over = memory_row("tinyllm", replace(memory, peak_rss=580_000_001), True)
    assert list(over_limit(over)) == ["at most 580 MB resident, over the limit of 580 MB"]
    assert memory_row("tinyllm", replace(memory, weights=None), True)["ok"] is None
    assert memory_row("other", replace(memory, peak_rss=580_000_001), False)["ok"] is None


def test_a_gate_shows_five_faults_and_counts_them_all() -> None:
    gate = Gate("g")
    gate.check("here", iter([f"fault {n}" for n in range(9)]))
    assert (len(gate.faults), gate.num_faults, gate.ok) == (5, 9, False)
