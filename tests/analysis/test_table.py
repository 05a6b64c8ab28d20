"""The comparison table: its width, its names, its numbers."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from analysis.fairness import MAX_TENANTS
from analysis.metrics import ServiceLevels
from analysis.table import MAX_WIDTH, format_number, labels, print_comparison
from tinyllm.engine.record.reader import read_run


def _printed(runs, width=200):
    out = io.StringIO()
    print_comparison(runs, console=Console(file=out, width=width))
    return out.getvalue()


@pytest.fixture
def runs(serve):
    jobs = [{"arrival": 1234.5 * i, "prompt": 8, "output": 3} for i in range(12)]
    return [read_run(serve(jobs, name=name)[0]) for name in ("fcfs", "a-run-with-quite-a-long-name-indeed")]


def test_a_line_a_run_that_fits_the_width_though_the_console_is_wider(runs):
    text = _printed(runs)
    assert sum(line.startswith(("fcfs", "a-run")) for line in text.splitlines()) == 2
    assert max(len(line.rstrip()) for line in text.splitlines()) <= MAX_WIDTH


def test_no_number_is_cut_at_the_full_width(runs):
    assert _printed(runs, MAX_WIDTH).count("…") == 1  # the long name only


def test_a_warning_that_holds_for_all_is_said_once(runs):
    assert _printed(runs).count("p99 rests on 12 completed requests") == 1
    assert "! all runs: p99" in _printed(runs)


def test_a_metric_that_is_not_defined_is_a_dash(serve):
    run = read_run(serve([{"arrival": 0.0, "prompt": 1, "output": 1, "refused": True}])[0])
    assert "–" in _printed([run])


def test_names_are_folders_and_differ_where_folders_agree(serve):
    jobs = [{"arrival": 0.0, "prompt": 1, "output": 1}]
    same = [read_run(serve(jobs, name=name)[0]) for name in ("a/run", "b/run", "other")]
    assert labels(same) == ["a/run", "b/run", "other"]
    assert labels([same[0], same[0]]) == ["a/run #1", "a/run #2"]


@pytest.mark.parametrize(
    ("value", "scale", "text"),
    [
        (None, 1, "–"),
        (19_366, 1, "19,366"),
        (1155.4, 1, "1,155"),
        (99.97, 1, "100"),
        (12.0, 1, "12.0"),
        (0.04567, 1, "0.0457"),
        (0.04567, 1e3, "45.7"),
        (0.0, 1, "0"),
        (1.23e-7, 1, "1.2e-07"),
    ],
)
def test_numbers_have_three_digits_that_count(value, scale, text):
    assert format_number(value, scale) == text


def _tenants_run(serve, tenants):
    jobs = [{"arrival": 0.0, "prompt": 8, "output": 1 + n, "tenant": f"t{n}"} for n in range(tenants)]
    return read_run(serve(jobs, name="shared")[0])


def test_tenants_have_a_line_each_where_there_is_more_than_one(serve, runs):
    lines = _printed([runs[0], _tenants_run(serve, 3)], MAX_WIDTH).splitlines()
    shown = [line.split()[:2] for line in lines if line.startswith("shared") and " t" in line]
    assert shown == [["shared", "t2"], ["shared", "t1"], ["shared", "t0"]]
    assert max(len(line.rstrip()) for line in lines) <= MAX_WIDTH
    assert "tenant" not in _printed(runs)


def test_only_the_most_served_tenants_are_shown_and_the_others_counted(serve):
    text = _printed([_tenants_run(serve, MAX_TENANTS + 3)])
    assert "… 3 more" in text
    assert " t2 " not in text and " t3 " in text


def test_service_levels_have_a_table_of_their_own(runs):
    assert "goodput" not in _printed(runs)
    out = io.StringIO()
    print_comparison(runs, levels=ServiceLevels(ttft=9, tpot=1), console=Console(file=out, width=MAX_WIDTH))
    text = out.getvalue()
    assert all(heading in text for heading in ("goodput", "per GPU", "fluidity", "QoE"))
    (line,) = [line for line in text.splitlines() if line.startswith("fcfs") and " 100 " in line]
    assert line.split()[-2:] == ["1.00", "1.00"]
