"""One line a run: what was offered, what came of it, how fast, and what to mistrust; see docs/metrics.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis import timeline
from analysis.fairness import GAP_TIMES, jain_index, num_tenants, service
from analysis.metrics import (
    ServiceLevels,
    Window,
    attainment,
    completed,
    inter_token_latencies,
    request_metrics,
    window,
)
from analysis.streaming import streaming_metrics
from tinyllm.engine.record.reader import Run

Summary = dict[str, Any]
"""Column name → number, text or None (not defined for this run); `warnings` → list of lines."""

MIN_REQUESTS_FOR_P99 = 2_000
"""Below it a p99 rests on fewer than 20 requests."""

MAX_LAG_SHARE = 0.05
"""A replay whose own lag is a larger part of the time to first token measures itself."""

UNSTABLE_GROWTH = 0.02
"""Growth of the queue, in requests an arrival, from which a run can be called unstable."""

UNSTABLE_REQUESTS = 5
"""Growth of the queue, in requests, under which no run is called unstable."""


def summarize(
    run: Run, warmup: float = 0.0, cooldown: float = 0.0, levels: ServiceLevels | None = None
) -> Summary:
    """The metrics of a run over its measured window. Times are seconds, shares are fractions.

    Args:
        run: what `read_run` gives.
        warmup, cooldown: seconds cut off by arrival time; see `analysis.metrics.window`.
        levels: objectives to judge the run by; without them those columns are None.

    Raises:
        InputError: the cuts leave no request, or `levels` names no objective above 0.
    """
    measured = window(run, warmup, cooldown)
    gaps = inter_token_latencies(run)
    frame = request_metrics(run, gaps)[measured.member]
    summary: Summary = {"run": run.path.name, "policy": policy_name(run), "status": run.status}
    summary |= _counts(run, measured)
    summary |= _rates(run, measured)
    for column in ("ttft", "tpot", "e2e"):
        values = _known(frame[column])
        summary |= {f"{column}_{name}": value for name, value in _distribution(values).items()}
    summary |= {
        f"itl_{name}": value for name, value in _distribution(gaps.gap[measured.member[gaps.request]]).items()
    }
    summary["queue_mean"] = _mean(_known(frame["queue_time"]))
    summary["normalized_latency_mean"] = _mean(_known(frame["normalized_latency"]))
    summary["longest_stall_max"] = _max(_known(frame["longest_stall"]))
    summary |= _work(run, measured)
    summary |= _occupancy(run, measured)
    summary |= _fairness(run, measured)
    summary |= _service_levels(run, measured, levels, warmup, cooldown)
    summary["lag_share"] = _ratio(
        _known(frame.loc[frame["ttft"].notna(), "lag"]).sum(), _known(frame["ttft"]).sum()
    )
    summary["unstable"] = is_unstable(run, measured)
    summary["warnings"] = _warnings(summary) + _turn_warnings(run)
    return summary


def policy_name(run: Run) -> str:
    """The policy of the manifest with its arguments, such as `priority(aging=30)`."""
    policy = run.manifest.get("policy") or {}
    args = ", ".join(f"{key}={value}" for key, value in (policy.get("args") or {}).items())
    return f"{policy.get('name', 'unknown')}({args})" if args else str(policy.get("name", "unknown"))


def is_unstable(run: Run, measured: Window) -> bool:
    """Whether the queue grows through the run, rather than going up and down.

    The time while requests of the window arrive is cut into quarters. The run is unstable if the mean number
    of waiting requests rises from each quarter to the next, and by at least 2 requests in 100 arrivals
    (and 5 requests) over the whole. An engine overloaded by x % grows its queue by about x in 100 arrivals.
    """
    arrival = run.requests["arrival"].to_numpy(np.float64)[measured.member]
    end = min(arrival.max(), measured.end)
    if not end > measured.start:
        return False
    quarters = timeline.waiting(run).means(np.linspace(measured.start, end, 5))
    # The middles of the first and the last quarter are three quarters of the window apart.
    growth = (quarters[3] - quarters[0]) * 4 / 3
    enough = max(UNSTABLE_REQUESTS, UNSTABLE_GROWTH * np.count_nonzero(arrival <= end))
    return bool((np.diff(quarters) > 0).all() and growth >= enough)


def _counts(run: Run, measured: Window) -> Summary:
    reason = run.requests["finish_reason"][measured.member].value_counts()
    count = {name: int(reason.get(name, 0)) for name in ("rejected", "error", "abort", "unfinished")}
    return {
        "offered": int(measured.member.sum()),
        "completed": int((completed(run) & measured.member).sum()),
        "refused": count["rejected"],
        "failed": count["error"],
        "aborted": count["abort"],
        "unfinished": count["unfinished"],
    }


def _rates(run: Run, measured: Window) -> Summary:
    """What left the engine inside the window, of whichever request: in a steady state, its throughput."""
    duration = measured.end - measured.start
    finished = timeline.seconds(run, "finished")[completed(run)]
    ends = run.steps["end"].to_numpy(np.float64)
    sampled = run.steps["sampled_tokens"].to_numpy(np.int64)
    return {
        "duration": duration,
        "request_throughput": _ratio(np.count_nonzero(_inside(finished, measured)), duration),
        "output_throughput": _ratio(sampled[_inside(ends, measured)].sum(), duration),
    }


def _work(run: Run, measured: Window) -> Summary:
    """Preemptions, recomputed tokens and prefix hits of the window's requests."""
    requests = run.requests[measured.member]
    admitted = requests[requests["first_scheduled"].notna()]
    spans = run.spans.loc[run.spans["request_id"].isin(requests["request_id"])]
    return {
        "preemptions_per_request": _ratio(requests["preemptions"].sum(), len(admitted)),
        "recomputed_share": _ratio(requests["recomputed_tokens"].sum(), spans["tokens"].sum()),
        "prefix_hit_share": _ratio(admitted["cached_prompt_tokens"].sum(), admitted["prompt_tokens"].sum()),
    }


def _occupancy(run: Run, measured: Window) -> Summary:
    ends = run.steps["end"].to_numpy(np.float64)
    used = run.steps["blocks_used"].to_numpy(np.int64)[_inside(ends, measured)]
    edges = [measured.start, measured.end]
    real = measured.end > measured.start
    return {
        "peak_blocks_used": int(used.max()) if len(used) else None,
        "num_gpu_blocks": _pool_size(run),
        "mean_running": float(timeline.running(run).means(edges)[0]) if real else None,
        "mean_waiting": float(timeline.waiting(run).means(edges)[0]) if real else None,
    }


def _fairness(run: Run, measured: Window) -> Summary:
    """How evenly the window's service went to tenants; None for a run of one tenant."""
    if num_tenants(run) < 2:
        return {"tenants": 1, "jain_index": None, "service_gap_max": None}
    times = np.linspace(np.nextafter(measured.start, -np.inf), measured.end, GAP_TIMES)
    course = service(run, times)
    inside = course._replace(served=course.served - course.served[0])
    return {
        "tenants": len(course.tenants),
        "jain_index": jain_index(inside.served[-1]),
        "service_gap_max": float(inside.gap.max()),
    }


def _service_levels(
    run: Run, measured: Window, levels: ServiceLevels | None, warmup: float, cooldown: float
) -> Summary:
    """Over the offered requests: one that did not complete misses its objectives and scores 0."""
    summary: Summary = dict.fromkeys(
        ("attainment", "goodput", "goodput_per_gpu", "fluidity_index_mean", "qoe_mean")
    )
    if levels is None:
        return summary
    result = attainment(run, **levels._asdict(), warmup=warmup, cooldown=cooldown)
    summary |= {
        "attainment": result.share,
        "goodput": result.goodput,
        "goodput_per_gpu": result.goodput_per_gpu,
    }
    if levels.ttft is not None and levels.tpot is not None:
        scores = streaming_metrics(run, levels.ttft, levels.tpot)[completed(run) & measured.member]
        summary |= {f"{name}_mean": float(scores[name].sum()) / result.offered for name in scores.columns}
    return summary


def _pool_size(run: Run) -> int | None:
    """Blocks of one replica's pool."""
    if run.steps.empty:
        return None
    return int(run.steps[["blocks_used", "blocks_cached", "blocks_free"]].iloc[0].sum())


def _warnings(summary: Summary) -> list[str]:
    done, share = summary["completed"], summary["lag_share"]
    checks = (
        (summary["status"] != "complete", f"the run is {summary['status']}, its log ends early"),
        (summary["unstable"], "unstable: the queue grows through the run, latency depends on its length"),
        (summary["refused"], f"{summary['refused']:,} of {summary['offered']:,} requests were refused"),
        (summary["failed"], f"{summary['failed']:,} of {summary['offered']:,} requests failed"),
        (
            summary["unfinished"],
            f"{summary['unfinished']:,} of {summary['offered']:,} requests did not finish",
        ),
        (
            share is not None and share > MAX_LAG_SHARE,
            f"the replay itself lagged: {share or 0:.0%} of the time to first token",
        ),
        (
            done < MIN_REQUESTS_FOR_P99,
            f"p99 rests on {done:,} completed requests, under {MIN_REQUESTS_FOR_P99:,}",
        ),
    )
    return [text for holds, text in checks if holds]


def _turn_warnings(run: Run) -> list[str]:
    """How far the turns of conversations came otherwise than a client sends them."""
    turns = run.manifest.get("turns") or {}
    later, overtaking, guessed = (turns.get(name, 0) for name in ("later", "overtaking", "guessed_thinks"))
    warnings = []
    if overtaking:
        warnings.append(
            f"{overtaking / later:.0%} of {later:,} later turns were submitted before the turn before them had "
            "ended: their history is only partly cached; --sessions closed"
        )
    if guessed:
        warnings.append(
            f"the trace tells no end of the turn before {guessed:,} turns: their think time is the gap of the "
            "starts, an upper bound; --think-time S sets one number"
        )
    return warnings


def _distribution(values: NDArray[np.float64]) -> dict[str, float | None]:
    if not len(values):
        return dict.fromkeys(("mean", "p50", "p99"))
    p50, p99 = np.percentile(values, [50, 99])
    return {"mean": float(values.mean()), "p50": float(p50), "p99": float(p99)}


def _inside(times: NDArray[np.float64], measured: Window) -> NDArray[np.bool_]:
    return (times >= measured.start) & (times <= measured.end)


def _known(column: pd.Series[Any]) -> NDArray[np.float64]:
    return column.dropna().to_numpy(np.float64)


def _mean(values: NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) else None


def _max(values: NDArray[np.float64]) -> float | None:
    return float(values.max()) if len(values) else None


def _ratio(part: Any, whole: Any) -> float | None:
    return float(part) / float(whole) if whole > 0 else None
