"""Latency metrics of each request, and the share of requests that meet a service level; see docs/metrics.md.

Names and definitions are vLLM's. Latency counts from the intended arrival, so a replay that lags does not
hide the queue that it caused (coordinated omission).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from analysis.tokens import TokenGaps, token_gaps, token_times
from tinyllm.engine.record.reader import Run
from tinyllm.errors import InputError

COMPLETED = ("stop", "length")
"""Finish reasons of a request that got all of its answer."""

_SECONDS = pd.ArrowDtype(pa.float64())


def request_metrics(run: Run, gaps: TokenGaps | None = None) -> pd.DataFrame:
    """The latencies of each request in seconds, a row for each row of `run.requests`, null where undefined.

    Columns:
        request_id, finish_reason: as in `run.requests`.
        lag: submitted − arrival.
        queue_time: first_scheduled − arrival.
        ttft: first_token − arrival.
        tpot: (finished − first_token) / (output_tokens − 1); completed requests of two tokens or more.
        e2e: finished − arrival; completed requests.
        normalized_latency: e2e / output_tokens; completed requests.
        longest_stall: the longest gap between two of its tokens.

    Args:
        run: what `read_run` gives.
        gaps: `inter_token_latencies(run)`, if it is there already.
    """
    frame = _latencies(run)
    gaps = gaps or inter_token_latencies(run)
    longest = pd.Series(gaps.gap).groupby(gaps.request).max()
    frame["longest_stall"] = longest.astype(_SECONDS).reindex(frame.index)
    return frame


def _latencies(run: Run) -> pd.DataFrame:
    """`request_metrics` without the columns that need the time of every token."""
    table = run.requests
    finished = table["finished"].where(completed(run))
    tokens = table["output_tokens"]
    more_tokens = (tokens - 1).where((tokens > 1).fillna(False))
    e2e = finished - table["arrival"]
    return pd.DataFrame(
        {
            "request_id": table["request_id"],
            "finish_reason": table["finish_reason"],
            "lag": table["submitted"] - table["arrival"],
            "queue_time": table["first_scheduled"] - table["arrival"],
            "ttft": table["first_token"] - table["arrival"],
            "tpot": (finished - table["first_token"]) / more_tokens,
            "e2e": e2e,
            "normalized_latency": e2e / tokens.where((tokens > 0).fillna(False)),
        }
    )


def inter_token_latencies(run: Run) -> TokenGaps:
    """The gaps between the tokens of each request (ITL), pooled over all requests."""
    return token_gaps(token_times(run))


def completed(run: Run) -> NDArray[np.bool_]:
    """[rows of `run.requests`] whether the request ended with all of its answer."""
    return run.requests["finish_reason"].isin(COMPLETED).to_numpy(bool)


@dataclass(frozen=True)
class Window:
    """The part of a run that is measured.

    Attributes:
        start, end: seconds since the start of the run.
        member: [rows of `run.requests`] whether the request counts: it arrived inside and is no warm-up row.
    """

    start: float
    end: float
    member: NDArray[np.bool_]


def window(run: Run, warmup: float = 0.0, cooldown: float = 0.0) -> Window:
    """Cut off warm-up and cool-down (seconds) by arrival time, and the rows that the workload marks as warm-up.

    The window opens `warmup` after the first arrival that is no warm-up row. With a cool-down it closes
    `cooldown` before the last arrival, else with the log. Which requests count depends on the workload alone,
    so they are the same for every policy.

    Raises:
        InputError: a cut is negative, or no request is left.
    """
    if not (warmup >= 0 and cooldown >= 0):
        raise InputError(f"warmup {warmup:g} s and cooldown {cooldown:g} s must be 0 or more")
    warm_rows = run.workload.loc[run.workload["warmup"].fillna(False), "request_id"]
    counted = ~run.requests["request_id"].isin(warm_rows).to_numpy(bool)
    arrival = run.requests["arrival"].to_numpy(np.float64)
    if not counted.any():
        raise InputError(f"{run.path} has no request outside its warm-up rows: replay a longer trace")
    start = float(arrival[counted].min()) + warmup
    last = float(arrival[counted].max()) - cooldown
    member = counted & (arrival >= start) & (arrival <= last)
    if not member.any():
        raise InputError(
            f"{run.path}: a warm-up of {warmup:g} s and a cool-down of {cooldown:g} s leave no request of "
            f"{counted.sum()}: shorten them"
        )
    end = _end_of_log(run)
    return Window(start, min(last, end) if cooldown > 0 else end, member)


def _end_of_log(run: Run) -> float:
    """The last time that the log knows: a step's end, a request's end or an event."""
    columns = (run.steps["end"], run.requests["finished"], run.events["time"])
    known = [float(column.max()) for column in columns if column.notna().any()]
    return max(known, default=0.0)


class ServiceLevels(NamedTuple):
    """Service level objectives (SLOs) of a request in seconds, inclusive; None leaves one out."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None


class Attainment(NamedTuple):
    """How many of the offered requests met their service level objectives.

    Attributes:
        offered, met: requests.
        share: met / offered.
        goodput: requests per second that met it, over the measured window.
        goodput_per_gpu: goodput / GPUs of the run.
    """

    offered: int
    met: int
    share: float
    goodput: float
    goodput_per_gpu: float


def attainment(
    run: Run,
    *,
    ttft: float | None = None,
    tpot: float | None = None,
    e2e: float | None = None,
    warmup: float = 0.0,
    cooldown: float = 0.0,
) -> Attainment:
    """Count the requests that met every objective given (seconds, inclusive).

    The base is all **offered** requests: a refused, failed, aborted or unfinished one misses. A request of
    one token has no TPOT and so cannot miss that objective.

    Raises:
        InputError: no objective is given, or one is not positive.
    """
    met = meets(run, ServiceLevels(ttft, tpot, e2e))
    measured = window(run, warmup, cooldown)
    offered, good = int(measured.member.sum()), int((met & measured.member).sum())
    span = measured.end - measured.start
    goodput = good / span if span > 0 else 0.0
    return Attainment(offered, good, good / offered, goodput, goodput / num_gpus(run))


def meets(run: Run, levels: ServiceLevels) -> NDArray[np.bool_]:
    """[rows of `run.requests`] whether the request completed and met every objective given.

    Raises:
        InputError: no objective is given, or one is not positive.
    """
    limits = {name: limit for name, limit in levels._asdict().items() if limit is not None}
    if not limits or not all(limit > 0 for limit in limits.values()):
        raise InputError("give at least one objective of ttft, tpot, e2e, each in seconds above 0")
    frame = _latencies(run)
    met = completed(run)
    for name, limit in limits.items():
        value = frame[name].to_numpy(np.float64, na_value=np.nan)
        met = met & ((value <= limit) | (np.isnan(value) if name == "tpot" else False))
    return met


def num_gpus(run: Run) -> int:
    """GPUs of the run: the cost model's tensor parallel degree, 1 where it names none, for each replica."""
    cost_model = run.manifest.get("cost_model")
    tp = cost_model.get("tp", 1) if isinstance(cost_model, dict) else 1
    return int(tp) * max(1, run.steps["replica"].nunique())
