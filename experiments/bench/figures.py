"""The figures of requests and runs, from `raw.parquet`; names and definitions are those of `analysis.metrics`.

Latency counts from the arrival, not from when a request was handed over. Percentiles interpolate linearly.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

QUANTILES: Final = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
LATENCIES: Final = ("ttft", "tpot", "e2e", "queue")

Figures = dict[str, float | int | None]


def request_figures(raw: pd.DataFrame) -> pd.DataFrame:
    """Each row of `raw` with its latencies in seconds, NaN where undefined.

    Columns added:
        completed: all of its answer is there: no error, and as many tokens as asked or an early end.
        output_tokens: how many tokens came.
        ttft: first token − arrival.
        tpot: (last − first token) / (output_tokens − 1); of two tokens or more.
        e2e: last token − arrival.
        queue: first scheduled − arrival, where the engine tells.
        lag: submitted − arrival.
        first_token, finished: seconds from the start of the run.
        later_tokens: tokens after the moment at which every request of the run has its first.
    """
    frame = raw.drop(columns=["token_times_s", "token_ids"])
    times = [np.asarray(each, dtype=np.float64) for each in raw["token_times_s"]]
    frame["completed"] = raw["finish_reason"].notna() & raw["error"].isna()
    frame["output_tokens"] = [len(each) for each in raw["token_ids"]]
    frame["first_token"] = [each[0] if len(each) else np.nan for each in times]
    frame["finished"] = [each[-1] if len(each) else np.nan for each in times]
    frame["ttft"] = frame["first_token"] - frame["arrival_s"]
    gaps = (frame["output_tokens"] - 1).where(frame["output_tokens"] > 1)
    frame["tpot"] = (frame["finished"] - frame["first_token"]) / gaps
    frame["e2e"] = frame["finished"] - frame["arrival_s"]
    frame["queue"] = frame["first_scheduled_s"] - frame["arrival_s"]
    frame["lag"] = frame["submitted_s"] - frame["arrival_s"]
    every_first = frame.groupby("run")["first_token"].transform("max")
    frame["later_tokens"] = [
        int((each > moment).sum()) for each, moment in zip(times, every_first, strict=True)
    ]
    return frame


def figures(requests: pd.DataFrame) -> Figures:
    """The figures of one engine's runs of a group in one repeat: shards are runs of their own, added up.

    Warm-up requests are cut. Keys:
        requests, completed, output_tokens: counts.
        wall_s: from the first arrival that counts to the last token, over all shards.
        req_s, tok_s: completed requests and output tokens a second of it.
        decode_tok_s: output tokens after the moment at which every request has its first, a second.
        ttft_p50 … queue_p99: seconds.
        max_concurrency: requests between arrival and last token, at most.
    """
    counted = requests[~requests["warmup"].astype(bool)]
    done = counted[counted["completed"]]
    runs = [run for _, run in counted.groupby("run")]
    wall = sum(_wall(run) for run in runs)
    tokens = int(counted["output_tokens"].sum())
    found: Figures = {
        "requests": len(counted),
        "completed": len(done),
        "output_tokens": tokens,
        "wall_s": wall,
        "req_s": len(done) / wall if wall > 0 else None,
        "tok_s": tokens / wall if wall > 0 else None,
        "decode_tok_s": _decode_speed(counted),
    }
    for name in LATENCIES:
        found |= {f"{name}_{key}": value for key, value in percentiles(done[name]).items()}
    found["max_concurrency"] = max((max_concurrency(run) for _, run in requests.groupby("run")), default=0)
    return found


def percentiles(values: pd.Series[Any]) -> dict[str, float | None]:
    """p50, p95 and p99; None where nothing is defined."""
    known = values.dropna().to_numpy(np.float64)
    if not len(known):
        return dict.fromkeys(QUANTILES)
    return dict(zip(QUANTILES, map(float, np.quantile(known, list(QUANTILES.values()))), strict=True))


def max_concurrency(run: pd.DataFrame) -> int:
    """How many requests of a run, warm-up included, were there at once: arrived, their last token still to come."""
    ended = run[run["finished"].notna()]
    times = np.concatenate([ended["finished"].to_numpy(), ended["arrival_s"].to_numpy()])
    changes = np.repeat([-1, 1], len(ended))
    # At one instant those who leave go first.
    return int(np.cumsum(changes[np.lexsort((changes, times))]).max(initial=0))


def good(requests: pd.DataFrame, limits: pd.DataFrame) -> NDArray[np.bool_]:
    """[rows] whether a request completed within its limits; one of a single token cannot miss that of TPOT.

    Args:
        limits: columns `ttft` and `tpot`, seconds, a row for each of `requests`.
    """
    ttft = requests["ttft"].to_numpy() <= limits["ttft"].to_numpy()
    tpot = requests["tpot"].to_numpy()
    within: NDArray[np.bool_] = ttft & (np.isnan(tpot) | (tpot <= limits["tpot"].to_numpy()))
    met: NDArray[np.bool_] = within & requests["completed"].to_numpy(bool)
    return met


def _wall(run: pd.DataFrame) -> float:
    end = run["finished"].max()
    return 0.0 if np.isnan(end) else float(end - run["arrival_s"].min())


def _decode_speed(counted: pd.DataFrame) -> float | None:
    """Of workloads that are there at once; where requests arrive one after the other the moment has no meaning."""
    tokens, seconds = 0, 0.0
    for _, run in counted.groupby("run"):
        if run["arrival_s"].max() > 0 or run["first_token"].isna().any():
            return None
        every_first = run["first_token"].max()
        seconds += run["finished"].max() - every_first
        tokens += int(run["later_tokens"].sum())
    return tokens / seconds if seconds > 0 else None
