"""The columns of tables: what they name is there, and a heading is said once."""

from __future__ import annotations

import pytest

from analysis.columns import COMPARISON, FAIRNESS, LATENCY, LEVELS, SERVICE, Column, headings, tenant_columns
from analysis.fairness import tenant_table
from analysis.metrics import ServiceLevels
from analysis.summary import summarize
from tinyllm.engine.record.reader import read_run


def test_a_group_stands_above_its_first_column_only():
    columns = [Column("a", "TTFT", "mean"), Column("b", "TTFT", "p99"), Column("c", "", "QoE")]
    assert headings(columns) == ["TTFT\nmean", "\np99", "\nQoE"]
    assert headings(columns[1:]) == ["TTFT\np99", "\nQoE"]


@pytest.mark.parametrize("columns", [LATENCY, SERVICE, LEVELS, FAIRNESS, COMPARISON])
def test_every_column_of_a_run_is_in_its_summary_and_there_once(serve, columns):
    levels = ServiceLevels(ttft=1, tpot=1)
    summary = summarize(read_run(serve([{"arrival": 0.0, "prompt": 3, "output": 2}])[0]), levels=levels)
    keys = [column.key for column in columns]
    assert set(keys) <= set(summary)
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("levels", [None, ServiceLevels(ttft=1)])
def test_every_column_of_a_tenant_is_in_its_table(serve, levels):
    table = tenant_table(read_run(serve([{"arrival": 0.0, "prompt": 3, "output": 2}])[0]), levels)
    keys = [column.key for column in tenant_columns(levels)]
    assert set(keys) <= set(table.columns)
    assert ("attainment" in keys) == (levels is not None)
