"""The figure of who was served how much: its lines are the service that was counted token by token."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from analysis.fairness import MAX_TENANTS
from analysis.report import write_report
from tinyllm.engine.record.reader import read_run

plots = pytest.importorskip("analysis.plots", reason="matplotlib (extra `report`) is not installed")

JOBS = [
    {"arrival": i / 2, "prompt": 8, "output": 1 + i % 5, "tenant": ("ada", "bob", "cy")[i % 3]}
    for i in range(18)
]


@pytest.fixture
def drawn(monkeypatch):
    """`drawn(runs)`: the axes of the figure, the gap's first."""

    def draw(runs):
        figures = []
        monkeypatch.setattr(plots, "_svg", lambda figure, *_: figures.append(figure) or "")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plots.service_figure(plots.plotted(runs, [f"run {i}" for i in range(len(runs))]))
        return figures[0].axes

    return draw


def _served(truth, tenant, until):
    """An output token counts 2, the 6 prompt tokens that no cache gave count 1 each with the first of them."""
    mine = [job for job in truth if job.tenant == tenant]
    return sum(2 * sum(t <= until for t in job.tokens) + 6 * (job.tokens[0] <= until) for job in mine)


def test_the_lines_are_the_service_of_each_tenant_and_its_gap(serve, drawn):
    served = [serve(JOBS, seats=seats) for seats in (1, 4)]
    gap, *panels = drawn([read_run(path) for path, _ in served])
    for line, panel, (_, truth) in zip(gap.lines, panels, served, strict=True):
        times = line.get_xdata()
        assert times[0] == 0 and times[-1] >= max(job.tokens[-1] for job in truth)
        assert [each.get_label() for each in panel.lines] == ["cy", "bob", "ada"]
        courses = np.array([[_served(truth, tenant, at) for at in times] for tenant in ("cy", "bob", "ada")])
        assert [each.get_ydata().tolist() for each in panel.lines] == courses.tolist()
        assert line.get_ydata().tolist() == (courses.max(axis=0) - courses.min(axis=0)).tolist()
    assert gap.lines[0].get_color() != gap.lines[1].get_color()
    colors = [[line.get_color() for line in panel.lines] for panel in panels]
    assert colors[0] == colors[1]


def test_runs_of_one_tenant_are_left_out_and_of_many_tenants_the_least_served(serve, drawn):
    alone = read_run(serve([{**job, "tenant": "ada"} for job in JOBS])[0])
    crowd = [
        {"arrival": 0.0, "prompt": 8, "output": 1 + i, "tenant": f"t{i}"} for i in range(MAX_TENANTS + 2)
    ]
    gap, panel = drawn([alone, read_run(serve(crowd)[0])])
    assert len(gap.lines) == 1
    assert [line.get_label() for line in panel.lines] == [f"t{i}" for i in range(MAX_TENANTS + 1, 1, -1)]


def test_a_run_whose_tenants_are_all_among_the_least_served_has_an_empty_panel(serve, drawn):
    crowd = [{"arrival": 0.0, "prompt": 8, "output": 9, "tenant": f"t{i}"} for i in range(MAX_TENANTS)]
    few = [{"arrival": 0.0, "prompt": 8, "output": 1, "tenant": name} for name in ("x", "y")]
    _, full, empty = drawn([read_run(serve(crowd)[0]), read_run(serve(few)[0])])
    assert (len(full.lines), len(empty.lines)) == (MAX_TENANTS, 0)


def test_the_report_has_the_figure_only_where_a_run_has_two_tenants(serve, tmp_path):
    shared = read_run(serve(JOBS)[0])
    alone = read_run(serve([{**job, "tenant": None} for job in JOBS])[0])
    assert "Service over time" in write_report([alone, shared], tmp_path / "shared.html").read_text()
    assert "Service over time" not in write_report([alone], tmp_path / "alone.html").read_text()
