"""From raw rows to the numbers of a report: medians over the repeats with their spread, and ratios between engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from experiments.bench.figures import Figures, figures, request_figures
from experiments.bench.floor import Ceilings, Floor
from experiments.bench.limits import judged, limits_alone
from experiments.bench.plan import MAX_NUM_SEQS, Plan
from experiments.bench.workloads import Workload

OURS: Final = "tinyllm"
"""The family that the others are compared with."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Summary:
    """What the report shows.

    Attributes:
        rows: one a workload and engine; of windows also one a length bucket. Times are seconds. Each figure is the
            median over the repeats, `<figure>_min` and `<figure>_max` beside it.
        ratios: one a workload and other family.
        limits: of good requests, one a probe.
    """

    rows: list[Row]
    ratios: list[Row]
    limits: list[Row]


def summarize(raw: pd.DataFrame, plan: Plan, ceilings: Ceilings | None) -> Summary:
    """The numbers of all runs that are complete.

    Args:
        raw: as `read_raw` gives it.
        ceilings: of the machine; None leaves the floors out.
    """
    requests = request_figures(raw)
    limits = limits_alone(requests, plan.suite.limits)
    requests = judged(requests[requests["kind"] != "probe"], limits)
    requests["unit"] = requests["group"].where(
        requests["kind"].isin(["offline", "correctness"]), requests["workload"]
    )
    floors = {} if ceilings is None else _floors(plan, ceilings)
    by_unit = {unit: _by_repeat(of_unit, floors.get(unit)) for unit, of_unit in _groups(requests, "unit")}
    rows = [row for unit, of_unit in _groups(requests, "unit") for row in _rows(of_unit, by_unit[unit], plan)]
    rows += [row for unit, of_unit in _groups(requests, "unit") for row in _bucket_rows(of_unit, plan)]
    places = {engine: place for place, engine in enumerate(plan.engines)}
    rows.sort(key=lambda row: places[row["engine"]])
    order = {unit: place for place, unit in enumerate(by_unit)}
    rows.sort(key=lambda row: order[row["workload"]])
    kinds = {row["workload"]: row["kind"] for row in rows}
    speeds = {unit: found for unit, found in by_unit.items() if kinds[unit] != "correctness"}
    ratios = [row for unit, found in speeds.items() for row in _ratios(unit, kinds[unit], found, plan)]
    return Summary(rows, ratios, limits)


def bucket_labels(edges: Sequence[int]) -> list[str]:
    """Names of the length buckets that these upper ends, in prompt tokens, make."""
    starts = [1, *(edge + 1 for edge in edges)]
    return [f"{low}–{high}" for low, high in zip(starts, edges, strict=False)] + [f"{starts[-1]}–"]


def _groups(frame: pd.DataFrame, column: str) -> list[tuple[str, pd.DataFrame]]:
    """In the order in which they first occur."""
    return [(str(name), group) for name, group in frame.groupby(column, sort=False)]


def _by_repeat(requests: pd.DataFrame, floor_s: float | None) -> dict[str, dict[int, Figures]]:
    """Figures by engine and repeat."""
    found: dict[str, dict[int, Figures]] = {}
    for engine, of_engine in _groups(requests, "engine"):
        for _, of_repeat in of_engine.groupby("repeat"):
            one = figures(of_repeat)
            counted = of_repeat[~of_repeat["warmup"].astype(bool)]
            one["good_ratio"] = float(counted["good"].mean()) if counted["good"].notna().all() else None
            wall = one["wall_s"]
            one["floor_share"] = floor_s / wall if floor_s is not None and wall else None
            found.setdefault(engine, {})[int(of_repeat["repeat"].iloc[0])] = one
    return found


def _rows(requests: pd.DataFrame, found: Mapping[str, Mapping[int, Figures]], plan: Plan) -> list[Row]:
    first = requests.iloc[0]
    facts = {
        "workload": first["unit"],
        "group": first["group"],
        "kind": first["kind"],
        "load": None if np.isnan(first["load"]) else float(first["load"]),
    }
    families = {engine: family for family, engines in plan.families.items() for engine in engines}
    return [
        facts
        | {"engine": engine, "family": families[engine], "bucket": None, "repeats": len(repeats)}
        | _medians(list(repeats.values()))
        for engine, repeats in found.items()
    ]


def _bucket_rows(requests: pd.DataFrame, plan: Plan) -> list[Row]:
    windows = plan.suite.windows
    group = str(requests.iloc[0]["group"])
    if windows is None or group in [loop.name for loop in plan.suite.open_loops]:
        return []
    if requests.iloc[0]["kind"] != "open-loop":
        return []
    edges = sorted({plan.options.scaled_length(edge) for edge in windows.prompt_buckets})
    number = np.searchsorted(edges, requests["prompt_tokens"].to_numpy())
    rows = []
    for bucket, label in enumerate(bucket_labels(edges)):
        inside = requests[number == bucket]
        if not inside["warmup"].all():
            rows += [row | {"bucket": label} for row in _rows(inside, _by_repeat(inside, None), plan)]
    return rows


def _medians(repeats: Sequence[Figures]) -> Row:
    row: Row = {}
    for name in repeats[0]:
        values = [value for one in repeats if (value := one[name]) is not None]
        for key, pick in (("", np.median), ("_min", min), ("_max", max)):
            row[name + key] = float(pick(values)) if values else None
    for name in ("requests", "completed", "output_tokens", "max_concurrency"):
        if row[name] is not None:
            row[name] = int(row[name])
    return row


def _floors(plan: Plan, ceilings: Ceilings) -> dict[str, float]:
    """Seconds of the offline cohorts that run in one batch, all shards."""
    floor = Floor.of(plan.shape, plan.options.dtype)
    totals: dict[str, float] = {}
    for item in plan.items:
        workload: Workload | None = item.workload
        if workload is not None and workload.kind == "offline" and len(workload.requests) <= MAX_NUM_SEQS:
            seconds = floor.seconds(workload.requests, ceilings)
            totals[workload.group] = totals.get(workload.group, 0.0) + seconds
    return totals


def _ratios(unit: str, kind: str, found: Mapping[str, Mapping[int, Figures]], plan: Plan) -> list[Row]:
    """Ours beside each other family's better mode: above 1 is better for us.

    Where all requests are there at once speeds are compared (output tokens/s), else latencies (median E2E).
    """
    metric, faster = ("e2e_p50", min) if kind == "open-loop" else ("tok_s", max)
    medians = {engine: _medians(list(repeats.values()))[metric] for engine, repeats in found.items()}
    ours = [engine for engine in plan.families.get(OURS, ()) if medians.get(engine)]
    rows = []
    for family, modes in plan.families.items():
        theirs = [engine for engine in modes if medians.get(engine)]
        if family == OURS or not ours or not theirs:
            continue
        best = faster(theirs, key=lambda engine: medians[engine])
        mine = faster(ours, key=lambda engine: medians[engine])
        both = sorted(found[mine].keys() & found[best].keys())
        pairs = [(found[mine][repeat][metric], found[best][repeat][metric]) for repeat in both]
        quotients = [_ratio(kind, a, b) for a, b in pairs if a and b]
        facts = {"workload": unit, "family": family, "mode": best, "metric": metric}
        rows.append(
            facts
            | {
                "ratio": _ratio(kind, medians[mine], medians[best]),
                "ratio_min": min(quotients, default=None),
                "ratio_max": max(quotients, default=None),
            }
        )
    return rows


def _ratio(kind: str, ours: float, theirs: float) -> float:
    return theirs / ours if kind == "open-loop" else ours / theirs
