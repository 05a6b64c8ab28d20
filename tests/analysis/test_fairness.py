"""Service by tenant against a count token by token, Jain's index, and the table a tenant a line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.fairness import NO_TENANT, jain_index, num_tenants, service, tenant_table
from analysis.metrics import ServiceLevels, attainment, window
from analysis.summary import summarize
from tinyllm.engine.record.reader import read_run

JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "arrival": st.integers(0, 40).map(lambda n: n / 4),
            "prompt": st.integers(1, 9),
            "output": st.integers(1, 6),
            "tenant": st.sampled_from(["ada", "bob", "ünal", None]),
        },
        optional={"refused": st.booleans(), "warmup": st.booleans()},
    ),
    min_size=1,
    max_size=8,
)
PREEMPT_AT = st.frozensets(st.integers(0, 12), max_size=4)


def _served_by_hand(truth, tenant, until):
    total = 0
    for job in truth:
        if (job.tenant or NO_TENANT) == tenant:
            total += 2 * sum(time <= until for time in job.tokens)
            if job.tokens and job.tokens[0] <= until:
                total += job.prompt - job.prompt // 4  # a quarter of the prompt comes from the cache
    return total


@settings(max_examples=40, deadline=None)
@given(jobs=JOBS, seats=st.integers(1, 3), preempt_at=PREEMPT_AT)
def test_service_is_what_was_counted_token_by_token(serve, jobs, seats, preempt_at):
    path, truth = serve(jobs, seats=seats, preempt_at=preempt_at)
    times = np.arange(0, 60) / 2
    course = service(read_run(path), times)
    assert course.tenants == sorted({job.tenant or NO_TENANT for job in truth})
    expected = [[_served_by_hand(truth, tenant, until) for tenant in course.tenants] for until in times]
    assert course.served.tolist() == expected
    assert course.gap.tolist() == [max(row) - min(row) for row in expected]


@settings(max_examples=25, deadline=None)
@given(jobs=JOBS, seats=st.integers(1, 3), ttft=st.integers(1, 9))
def test_the_tenants_of_a_run_add_up_to_it(serve, jobs, seats, ttft):
    jobs = [{**jobs[0], "warmup": False}, *jobs[1:]]
    run = read_run(serve(jobs, seats=seats)[0])
    table = tenant_table(run, ServiceLevels(ttft=ttft))
    whole, reached = summarize(run), attainment(run, ttft=ttft)
    assert table["offered"].sum() == whole["offered"] and table["completed"].sum() == whole["completed"]
    assert len(table) == num_tenants(run) == whole["tenants"]
    assert (table["attainment"].fillna(0) * table["offered"]).sum() == pytest.approx(reached.met)
    assert table["service"].is_monotonic_decreasing
    if table["service"].sum():
        assert table["service_share"].sum() == pytest.approx(1)
        assert whole["jain_index"] == (
            None if len(table) == 1 else pytest.approx(jain_index(table["service"]))
        )
    measured = window(run)
    for row in table.itertuples():
        mine = (run.requests["tenant"].fillna(NO_TENANT) == row.tenant).to_numpy() & measured.member
        ttfts = (run.requests["first_token"] - run.requests["arrival"])[mine].dropna()
        assert row.ttft_mean == pytest.approx(ttfts.mean() if len(ttfts) else np.nan, nan_ok=True)


def test_the_largest_gap_of_a_run_is_that_of_the_favoured_tenant(serve):
    jobs = [
        {"arrival": 0.0, "prompt": 4, "output": 5, "tenant": "ada"},
        {"arrival": 0.0, "prompt": 4, "output": 5, "tenant": "bob"},
    ]
    summary = summarize(read_run(serve(jobs, seats=1)[0]))
    # All of ada is served before bob begins: 3 prompt tokens that are not cached, and 5 outputs.
    assert summary["service_gap_max"] == 3 + 2 * 5
    assert summary["jain_index"] == 1.0


def test_a_run_without_tenants_has_no_fairness(serve):
    summary = summarize(read_run(serve([{"arrival": 0.0, "prompt": 1, "output": 2}])[0]))
    assert (summary["tenants"], summary["jain_index"], summary["service_gap_max"]) == (1, None, None)


@pytest.mark.parametrize(
    ("values", "index"), [([3, 3, 3], 1.0), ([5, 0, 0, 0], 0.25), ([1, 2, 3], 36 / (3 * 14)), ([0, 0], None)]
)
def test_jains_index_of_known_shares(values, index):
    assert jain_index(values) == (index if index is None else pytest.approx(index))
