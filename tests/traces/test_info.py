from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.errors import InputError
from traces.info import summarize
from traces.measures import Arrivals, length_stats
from traces.prefix import IdealPrefixCache
from traces.schema import Trace, TraceRow

S = 10**9


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60))
def test_length_quantiles_equal_numpy_s(tokens: list[int]) -> None:
    stats = length_stats(Counter(tokens))
    expected = [np.mean(tokens), *np.quantile(tokens, [0.5, 0.95, 0.99]), max(tokens)]
    assert [stats.mean, stats.median, stats.p95, stats.p99, stats.max] == pytest.approx(expected)


@given(st.lists(st.integers(0, 200 * S), min_size=2, max_size=60).map(sorted))
def test_burstiness_equals_numpy_s(times: list[int]) -> None:
    arrivals = Arrivals()
    for at in times:
        arrivals.add(at)
    span = times[-1] - times[0]
    assert arrivals.distinct == len(set(times))
    if span == 0:
        assert arrivals.rate() is arrivals.cv() is arrivals.dispersion() is None
        return
    gaps = np.diff(np.array(times, dtype=np.float64))
    assert arrivals.cv() == pytest.approx(gaps.std() / gaps.mean(), abs=1e-6)
    bins = np.bincount((np.array(times) - times[0]) // (10 * S), minlength=span // (10 * S) + 1)
    assert arrivals.dispersion() == (pytest.approx(bins.var() / bins.mean()) if len(bins) > 1 else None)


def test_a_summary_counts_sessions_and_tenants(make_trace: Callable[..., Trace]) -> None:
    rows = [
        TraceRow(0, 0, 10, 1, "b", "s1"),
        TraceRow(1, 1, 20, 2, "a", "s1"),
        TraceRow(2, 2, 30, 3, None, None),
        TraceRow(3, 3, 40, 4, "b", "s2"),
    ]
    summary = summarize(make_trace(rows))
    assert (summary.rows, summary.sessions, summary.turns_per_session) == (4, 2, 1.5)
    assert list(summary.tenants.items()) == [("b", 2), ("a", 1)]
    assert summary.prefix_hit_share is None


def test_coarse_clocks_and_quiet_starts_are_warned_of(make_trace: Callable[..., Trace]) -> None:
    quiet = [100 * index * S for index in range(60)]
    busy = [(6000 + 10 * (index // 5)) * S for index in range(300)]
    rows = [TraceRow(index, at, 10, 1) for index, at in enumerate(quiet + busy)]
    text = "\n".join(summarize(make_trace(rows)).warnings)
    assert "120 distinct times for 360 rows" in text
    assert "whole seconds" in text
    assert "first tenth of the rows" in text


def test_a_steady_trace_with_a_fine_clock_has_no_warning(make_trace: Callable[..., Trace]) -> None:
    rows = [TraceRow(index, index * S + 1, 10, 1) for index in range(300)]
    assert summarize(make_trace(rows)).warnings == []


def _hits(rows: list[tuple[int, tuple[int, ...]]], per_id: int, block_size: int = 1) -> list[int]:
    cache = IdealPrefixCache(per_id, block_size)
    return [cache.hit_tokens(TraceRow(0, 0, prompt, 1, prefix_ids=ids)) for prompt, ids in rows]


def test_ideal_hits_are_leading_blocks_and_leave_a_token_to_compute() -> None:
    rows = [(8, (1, 2)), (8, (1, 2)), (8, (3, 2)), (6, (1, 2)), (12, (1, 2, 4)), (7, (1, 5))]
    assert _hits(rows, 4) == [0, 7, 0, 5, 8, 4]


def test_a_partial_last_block_is_shared_as_far_as_both_rows_cover_it() -> None:
    assert _hits([(6, (1, 2)), (8, (1, 2)), (8, (1, 2))], 4) == [0, 6, 7]


def test_in_blocks_only_full_ones_wholly_inside_the_prompt_count() -> None:
    assert _hits([(7, (1, 2)), (7, (1, 2)), (8, (1, 2)), (8, (1, 2))], 4, 2) == [0, 6, 6, 6]


def _brute_hits(rows: list[tuple[int, tuple[int, ...]]], per_id: int, block_size: int) -> list[int]:
    cached: set[tuple[int, int]] = set()
    found = []
    for prompt, ids in rows:
        blocks = [
            (ids[start // per_id], start % per_id) for start in range(0, prompt - block_size + 1, block_size)
        ]
        leading = next((index for index, block in enumerate(blocks) if block not in cached), len(blocks))
        found.append(min(leading, (prompt - 1) // block_size) * block_size)
        cached.update(blocks)
    return found


@given(st.data(), st.sampled_from([1, 2, 4]))
def test_ideal_hits_equal_a_cache_of_single_blocks(data: st.DataObject, block_size: int) -> None:
    def row(prompt: int) -> tuple[int, tuple[int, ...]]:
        count = -(-prompt // 4)
        return prompt, tuple(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))

    rows = [row(prompt) for prompt in data.draw(st.lists(st.integers(1, 14), min_size=1, max_size=8))]
    assert _hits(rows, 4, block_size) == _brute_hits(rows, 4, block_size)


def test_a_block_size_that_does_not_divide_the_trace_s_is_refused(make_trace: Callable[..., Trace]) -> None:
    with pytest.raises(InputError, match="does not divide"):
        summarize(make_trace([TraceRow(0, 0, 5, 1, prefix_ids=(1,))], 512), block_size=48)
