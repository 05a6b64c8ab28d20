"""The figures of the report, as inline SVG. Needs matplotlib (extra `report`).

A run has one colour in all figures. The palette is Okabe and Ito's, which colour-blind readers can tell apart
(Okabe & Ito 2008, *Color Universal Design*); line styles differ as well once the colours repeat.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogFormatter, MaxNLocator
from numpy.typing import NDArray

from analysis import timeline
from analysis.fairness import MAX_TENANTS, Service, num_tenants, service
from analysis.metrics import inter_token_latencies, request_metrics
from tinyllm.engine.record.reader import Run

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
TENANT_COLORS = ("#332288", "#CC6677", "#117733", "#88CCEE", "#882255", "#DDCC77", "#44AA99", "#999933")
"""Paul Tol's muted scheme: a tenant is not to be taken for a run."""

DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)))
NEUTRAL = "#546E7A"
BLOCKS = {"used": "#0072B2", "cached": "#9FD0F0", "free": "#ECEFF1"}

LATENCIES = {
    "ttft": ("Time to first token", "s", 1.0),
    "tpot": ("Time per output token", "ms", 1e3),
    "itl": ("Inter-token latency", "ms", 1e3),
    "e2e": ("End-to-end latency", "s", 1.0),
}
"""Title, unit, and how many of it are in a second."""

NUM_BINS = 240
"""Time bins of a curve: about one for each three pixels of a figure's width."""

NUM_QUANTILES = 400
"""Points of a distribution, so that a million token gaps do not become a million path nodes."""

STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Arial", "DejaVu Sans", "sans-serif"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#90A4AE",
    "axes.labelcolor": "#455A64",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E8EB",
    "grid.linewidth": 0.8,
    "xtick.color": "#607D8B",
    "ytick.color": "#607D8B",
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "axes.prop_cycle": cycler(color=COLORS),
}


NUMBER = FuncFormatter(lambda value, _: f"{value:,.10g}")


class Plotted(NamedTuple):
    """A run as the figures show it."""

    run: Run
    name: str
    color: str
    dash: Any


def plotted(runs: Sequence[Run], names: Sequence[str]) -> list[Plotted]:
    """Give each run its colour and line style."""
    return [
        Plotted(run, name, COLORS[i % len(COLORS)], DASHES[i // len(COLORS) % len(DASHES)])
        for i, (run, name) in enumerate(zip(runs, names, strict=True))
    ]


def load_figure(runs: Sequence[Plotted]) -> str:
    """Arrivals, waiting and running requests over time, as SVG."""
    edges = _edges([item.run for item in runs])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 6.6), layout="constrained")
        arrivals, waiting, running = figure.subplots(3, 1, sharex=True)
        for item in _distinct_arrivals(runs):
            coarse = edges[::4]  # counts of single arrivals are noisy, unlike averages over time
            rate = np.histogram(_arrivals(item.run), coarse)[0] / np.diff(coarse)
            _steps(arrivals, coarse, rate, item)
        for item in runs:
            _steps(waiting, edges, timeline.waiting(item.run).means(edges), item)
            _steps(running, edges, timeline.running(item.run).means(edges), item)
        _describe(arrivals, "Arrivals", "requests / s")
        _describe(waiting, "Waiting", "requests")
        _describe(running, "Running", "requests")
        running.set_xlabel("time since the start of the run (s)")
        running.set_xlim(edges[0], edges[-1])
        running.xaxis.set_major_formatter(NUMBER)
        _legend(figure, runs)
        return _svg(figure, "load", "Arrivals, waiting and running requests over time")


def blocks_figure(runs: Sequence[Plotted]) -> str:
    """Used, cached and free KV blocks over time, a panel a run, as SVG."""
    edges = _edges([item.run for item in runs])
    rows = (len(runs) + 1) // 2
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 0.7 + 2.2 * rows), layout="constrained")
        panels = figure.subplots(rows, min(2, len(runs)), sharex=True, squeeze=False).ravel()
        for panel, item in zip(panels, runs, strict=False):
            stacked = np.array([_step_means(item.run, f"blocks_{kind}", edges) for kind in BLOCKS])
            middles = (edges[:-1] + edges[1:]) / 2
            panel.stackplot(middles, stacked, colors=list(BLOCKS.values()), labels=list(BLOCKS), step="mid")
            _describe(panel, item.name, "KV blocks")
            panel.set_xlim(edges[0], edges[-1])
            panel.xaxis.set_major_formatter(NUMBER)
        for panel in panels[len(runs) :]:
            panel.remove()
        for panel in panels[max(0, len(runs) - 2) : len(runs)]:
            panel.tick_params(labelbottom=True)
            panel.set_xlabel("time since the start of the run (s)")
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper right", ncols=3)
        return _svg(figure, "blocks", "KV blocks used, cached and free over time")


def service_figure(runs: Sequence[Plotted]) -> str:
    """Service gap over time, a line a run; below it the service of the tenants, a panel a run; as SVG.

    Runs of a single tenant are left out; a tenant has one colour in all panels.

    Args:
        runs: at least one of them has two tenants.
    """
    runs = [item for item in runs if num_tenants(item.run) > 1]
    edges = _edges([item.run for item in runs])
    courses = [service(item.run, edges) for item in runs]
    colors = dict(zip(_most_served(courses), TENANT_COLORS, strict=False))
    rows = (len(runs) + 1) // 2
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 2.8 + 2.4 * rows), layout="constrained")
        grid = figure.add_gridspec(rows + 1, 2)
        gap = figure.add_subplot(grid[0, :])
        for index, (item, course) in enumerate(zip(runs, courses, strict=True)):
            gap.plot(edges, course.gap, color=item.color, linestyle=item.dash)
            place = grid[1 + index // 2, index % 2] if len(runs) > 1 else grid[1, :]
            panel = figure.add_subplot(place, sharex=gap)
            _tenant_lines(panel, course, colors)
            _describe(panel, item.name, "weighted tokens")
            panel.set_xlabel("time since the start of the run (s)")
        _describe(gap, "Service gap", "weighted tokens")
        gap.set_xlim(edges[0], edges[-1])
        gap.xaxis.set_major_formatter(NUMBER)
        _legend(figure, runs)
        return _svg(figure, "service", "Service gap, and service of each tenant, over time")


def _tenant_lines(panel: Any, course: Service, colors: Mapping[str, str]) -> None:
    for tenant, color in colors.items():
        if tenant in course.tenants:
            served = course.served[:, course.tenants.index(tenant)]
            panel.plot(course.times, served, color=color, label=tenant)
    if panel.lines:
        panel.legend(loc="upper left", fontsize=8)


def _most_served(courses: Sequence[Service]) -> list[str]:
    """At most `MAX_TENANTS` names, by what they got in all runs together."""
    total = Counter[str]()
    for course in courses:
        total.update(dict(zip(course.tenants, course.served[-1].tolist(), strict=True)))
    return [tenant for tenant, _ in total.most_common(MAX_TENANTS)]


def latency_figure(runs: Sequence[Plotted], members: Sequence[NDArray[np.bool_]]) -> str:
    """Cumulative distributions of TTFT, TPOT, ITL and E2E over the measured requests, as SVG.

    Args:
        runs: the runs.
        members: for each run, [rows of `requests`] whether the request is measured.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 6.4), layout="constrained")
        panels = dict(zip(LATENCIES, figure.subplots(2, 2, sharey=True).ravel(), strict=True))
        for item, member in zip(runs, members, strict=True):
            for name, values in _latencies(item.run, member).items():
                _distribution(panels[name], values * LATENCIES[name][2], item)
        for name, panel in panels.items():
            title, unit, _ = LATENCIES[name]
            _describe(panel, title, "share of tokens" if name == "itl" else "share of requests")
            panel.set_xscale("log")
            panel.set_xlabel(f"{name.upper()} ({unit})")
            panel.xaxis.set_major_formatter(NUMBER)
            panel.xaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False))
            panel.set_ylim(0, 1.02)
        _legend(figure, runs)
        return _svg(figure, "latency", "Cumulative distributions of TTFT, TPOT, ITL and E2E")


def _latencies(run: Run, member: NDArray[np.bool_]) -> dict[str, NDArray[np.float64]]:
    gaps = inter_token_latencies(run)
    frame = request_metrics(run, gaps)[member]
    values = {name: frame[name].dropna().to_numpy(np.float64) for name in ("ttft", "tpot", "e2e")}
    return values | {"itl": gaps.gap[member[gaps.request]]}


def _distribution(panel: Any, values: NDArray[np.float64], item: Plotted) -> None:
    if len(values):
        shares = np.linspace(0, 1, min(len(values), NUM_QUANTILES))
        quantiles = np.quantile(values, shares)
        panel.step(quantiles, shares, where="post", color=item.color, linestyle=item.dash)


def _arrivals(run: Run) -> NDArray[np.float64]:
    # Of the requests, not of the workload: turns of closed sessions come when those before them have ended.
    return np.sort(run.requests["arrival"].to_numpy(np.float64))


def _distinct_arrivals(runs: Sequence[Plotted]) -> list[Plotted]:
    """One run for each different set of arrivals; in a neutral colour if all runs had the same."""
    first: dict[bytes, Plotted] = {}
    for item in runs:
        first.setdefault(_arrivals(item.run).tobytes(), item)
    shared = len(first) == 1 < len(runs)
    return [item._replace(color=NEUTRAL, dash="-") if shared else item for item in first.values()]


def _edges(runs: Sequence[Run]) -> NDArray[np.float64]:
    """Edges of the time bins, from the first arrival to the last event, the same for all runs of a figure."""
    first = min(float(run.requests["arrival"].min()) for run in runs)
    last = max(float(run.requests["arrival"].max()) for run in runs)
    ends = [float(run.steps["end"].max()) for run in runs if len(run.steps)]
    last = max([last, *ends, first + 1e-9])
    return np.linspace(first, last, NUM_BINS + 1)


def _step_means(run: Run, column: str, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Time averages of a count of `steps`, summed over replicas; a count holds until the next step's end."""
    total = np.zeros(len(edges) - 1)
    for _, steps in run.steps.groupby("replica"):
        ends = steps["end"].to_numpy(np.float64)
        total += timeline.Curve(ends, steps[column].to_numpy(np.float64)).means(edges)
    return total


def _steps(panel: Any, edges: NDArray[np.float64], values: NDArray[np.float64], item: Plotted) -> None:
    panel.stairs(values, edges, color=item.color, linestyle=item.dash, linewidth=1.4, baseline=None)


def _describe(panel: Any, title: str, unit: str) -> None:
    panel.set_title(title)
    panel.set_ylabel(unit)
    panel.set_ylim(bottom=0)
    panel.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    panel.yaxis.set_major_formatter(NUMBER)


def _legend(figure: Figure, runs: Sequence[Plotted]) -> None:
    handles = [Line2D([], [], color=item.color, linestyle=item.dash, linewidth=2.5) for item in runs]
    figure.legend(handles, [item.name for item in runs], loc="outside upper right", ncols=min(4, len(runs)))


def _svg(figure: Figure, name: str, description: str) -> str:
    """The `<svg>` element alone: equal figures give equal bytes, and ids are unique on a page of several."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(
            buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r' width="[\d.]+pt" height="[\d.]+pt"', "", text, count=1)
    return text.replace("<svg", f'<svg role="img" aria-label="{description}"', 1)
