"""`tinyllm report`: several runs on one self-contained HTML page."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import page
from analysis.columns import FAIRNESS, LATENCY, LEVELS, SERVICE, Column, headings, tenant_columns
from analysis.fairness import num_tenants, tenant_table
from analysis.metrics import ServiceLevels, window
from analysis.summary import Summary, policy_name, summarize
from analysis.table import format_number, grouped_warnings, labels, tenant_rows
from tinyllm.engine.record.reader import Run
from tinyllm.errors import IncompleteRunError, InputError

if TYPE_CHECKING:
    from analysis.plots import Plotted

HEAD_BYTES = 4096
"""The marker of a report stands within them."""


def write_report(
    runs: Sequence[Run],
    out: Path,
    *,
    warmup: float = 0.0,
    cooldown: float = 0.0,
    force: bool = False,
    summaries: Sequence[Summary] | None = None,
    levels: ServiceLevels | None = None,
) -> Path:
    """Write the report of `runs` to `out`, whole or not at all. Returns `out`.

    Args:
        runs: what `read_run` gave, in the order in which they are shown.
        out: an HTML file; its folder is created. A report of ours is replaced, another file only with `force`.
        warmup, cooldown: as in `analysis.summary.summarize`.
        force: overwrite any file.
        summaries: those of `runs` under the same cuts and levels, if they are there already.
        levels: service levels to judge the runs by.

    Raises:
        InputError: matplotlib is missing, `out` is a folder or a file that is no report, or the cuts leave nothing.
        IncompleteRunError: the disk does not take the file.
    """
    if not runs:
        raise InputError("no run to report: name at least one run directory")
    out = Path(out)
    _check_target(out, force)
    if summaries is None:
        summaries = [summarize(run, warmup, cooldown, levels) for run in runs]
    _replace(out, render_report(runs, summaries, warmup, cooldown, levels))
    return out


def render_report(
    runs: Sequence[Run],
    summaries: Sequence[Summary],
    warmup: float = 0.0,
    cooldown: float = 0.0,
    levels: ServiceLevels | None = None,
) -> str:
    """The page as text.

    Raises:
        InputError: matplotlib is missing.
    """
    try:
        from analysis import plots
    except ModuleNotFoundError as error:
        raise InputError(
            f'the report needs {error.name}, which is not installed: run pip install "tinyllm[report]"'
        ) from None
    names = labels(runs)
    items = plots.plotted(runs, names)
    members = [window(run, warmup, cooldown).member for run in runs]
    heads = [page.run_label(item.color, item.name, policy_name(item.run)) for item in items]
    cut = f" Warm-up {warmup:g} s and cool-down {cooldown:g} s are cut off by arrival."
    counted = "Counted from the intended arrival." + (cut if warmup or cooldown else "")
    body = [
        page.warnings(grouped_warnings(summaries, names)),
        page.section("Latency", _lines(LATENCY, heads, summaries), counted),
        page.section("Service", _lines(SERVICE, heads, summaries), "Shares are of tokens."),
        _service_levels(heads, summaries, levels),
        _tenants(runs, heads, summaries, levels, (warmup, cooldown)),
        _service_over_time(items),
        page.section("Load over time", plots.load_figure(items), "Means over equal bins of time."),
        page.section(
            "Latency distributions",
            plots.latency_figure(items, members),
            "Measured requests; logarithmic time.",
        ),
        page.section(
            "KV blocks",
            plots.blocks_figure(items),
            "Used: referenced by a request; cached: kept for its prefix.",
        ),
        page.section("What was run", _facts(runs, heads)),
    ]
    lead = f"{len(runs)} run{'s' if len(runs) > 1 else ''}: {', '.join(names)}"
    return page.page("tinyllm report", lead, body)


def _lines(columns: Sequence[Column], heads: Sequence[str], summaries: Sequence[Summary]) -> str:
    """A line a run."""
    rows = [
        [head, *(format_number(summary[column.key], column.scale) for column in columns)]
        for head, summary in zip(heads, summaries, strict=True)
    ]
    return page.table(["run", *_headings(columns)], rows)


def _headings(columns: Sequence[Column]) -> list[str]:
    return [escape(heading).replace("\n", "<br>") for heading in headings(columns)]


def _service_levels(heads: Sequence[str], summaries: Sequence[Summary], levels: ServiceLevels | None) -> str:
    """The section on service levels; nothing where none are given."""
    if levels is None:
        return ""
    given = [f"{name.upper()} ≤ {limit:g} s" for name, limit in levels._asdict().items() if limit is not None]
    note = f"{', '.join(given)}. Of all offered requests; fluidity index and QoE need TTFT and TPOT."
    return page.section("Service levels", _lines(LEVELS, heads, summaries), note)


def _tenants(
    runs: Sequence[Run],
    heads: Sequence[str],
    summaries: Sequence[Summary],
    levels: ServiceLevels | None,
    cuts: tuple[float, float],
) -> str:
    """The section on tenants; nothing where no run has more than one."""
    columns = tenant_columns(levels)
    rows = [
        [head, escape(tenant), *numbers]
        for run, head in zip(runs, heads, strict=True)
        if num_tenants(run) > 1
        for tenant, numbers in tenant_rows(tenant_table(run, levels, *cuts), columns)
    ]
    if not rows:
        return ""
    content = _lines(FAIRNESS, heads, summaries) + page.table(["run", "tenant", *_headings(columns)], rows)
    note = "Service: a computed prompt token counts 1, an output token 2. Unequal demand is no unfairness."
    return page.section("Tenants", content, note)


def _service_over_time(items: Sequence[Plotted]) -> str:
    """The figure of who was served how much; nothing where no run has more than one tenant."""
    if not any(num_tenants(item.run) > 1 for item in items):
        return ""
    from analysis import plots

    note = (
        "Cumulative, from the start of the run. Gap: the tenant that got most, less the one that got least."
    )
    return page.section("Service over time", plots.service_figure(items), note)


def _facts(runs: Sequence[Run], heads: Sequence[str]) -> str:
    """What the manifests say, a column a run."""
    facts = [manifest_facts(run) for run in runs]
    keys = list(dict.fromkeys(key for fact in facts for key in fact))
    rows = [[escape(key), *(escape(fact.get(key, "–")) for fact in facts)] for key in keys]
    return page.table(["", *heads], rows, css_class="facts")


def manifest_facts(run: Run) -> dict[str, str]:
    """What one needs to know of a run to repeat it: heading → text."""
    manifest = run.manifest
    trace = manifest.get("trace") or {}
    facts = {
        "status": run.status,
        "mode": manifest.get("mode"),
        "policy": policy_name(run),
        "seed": manifest.get("seed"),
        "trace": trace.get("path"),
        "trace format": trace.get("format"),
        "trace sha256": trace.get("sha256"),
        "transforms": trace.get("transforms") or None,
        "rows read": trace.get("rows_in"),
        "rows replayed": trace.get("rows_out"),
        "rows dropped": trace.get("dropped") or None,
        "cost model": manifest.get("cost_model"),
        "device": manifest.get("device"),
        "engine": manifest.get("config"),
        "versions": manifest.get("versions"),
        "git revision": manifest.get("git_revision"),
    }
    return {key: _plain(value) for key, value in facts.items() if value is not None}


def _plain(value: Any) -> str:
    """A manifest value as text: `a = 1, b = 2` for an object."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_plain(part)}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return "; ".join(map(_plain, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _check_target(out: Path, force: bool) -> None:
    if out.is_dir():
        raise InputError(f"{out} is a folder: name a file, such as {out / 'report.html'}")
    if force or not out.exists():
        return
    with out.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if page.MARKER.encode() not in head:
        raise InputError(f"{out} exists and is no tinyllm report: name another file, or use --force")


def _replace(out: Path, text: str) -> None:
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, out)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise IncompleteRunError(
            f"{out} cannot be written ({error.strerror}): free space or name another file"
        ) from None
