"""Who was served how much: service by tenant over time, its gap, Jain's index; see docs/metrics.md."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from analysis.metrics import ServiceLevels, completed, meets, request_metrics, window
from analysis.timeline import seconds
from analysis.tokens import token_times
from tinyllm.engine.record.reader import Run

INPUT_WEIGHT, OUTPUT_WEIGHT = 1, 2
"""What a computed prompt token and an output token cost, in VTC's evaluation (Sheng et al., OSDI 2024)."""

GAP_TIMES = 1_000
"""Evenly spaced times of a window at which the largest service gap is looked for."""

MAX_TENANTS = 8
"""Tenants of a run that tables and figures show one by one, those that were served most."""

NO_TENANT = "(none)"
"""Stands for the requests that name no tenant."""


class Service(NamedTuple):
    """Weighted tokens by tenant.

    Attributes:
        tenants: names, sorted.
        times: [n] seconds since the start of the run.
        served: [n, tenants] what each tenant got up to and including that time.
    """

    tenants: list[str]
    times: NDArray[np.float64]
    served: NDArray[np.float64]

    @property
    def gap(self) -> NDArray[np.float64]:
        """[n] Service of the tenant that got most, less that of the one that got least."""
        gap: NDArray[np.float64] = self.served.max(axis=1) - self.served.min(axis=1)
        return gap


def service(run: Run, times: ArrayLike) -> Service:
    """What each tenant was served until each of `times` (seconds, rising).

    An output token counts when it is there. A prompt counts with its request's first token, without what the
    prefix cache gave; work that is done again after a preemption is no service.
    """
    times = np.asarray(times, np.float64)
    codes, tenants = _tenants(run)
    tokens = token_times(run)
    first_token = seconds(run, "first_token")
    prompted = np.flatnonzero(~np.isnan(first_token))
    cached = run.requests["cached_prompt_tokens"].fillna(0)
    computed = (run.requests["prompt_tokens"] - cached).to_numpy(np.float64)
    moment = np.concatenate([tokens.time, first_token[prompted]])
    tenant = codes[np.concatenate([tokens.request, prompted])]
    weight = np.concatenate(
        [np.full(len(tokens.time), float(OUTPUT_WEIGHT)), INPUT_WEIGHT * computed[prompted]]
    )
    place = np.searchsorted(times, moment, side="left")
    flat = np.bincount(
        place * len(tenants) + tenant, weight, minlength=(len(times) + 1) * len(tenants)
    ).reshape(-1, len(tenants))
    return Service(tenants, times, np.cumsum(flat[:-1], axis=0))


def jain_index(values: ArrayLike) -> float | None:
    """(Σx)² / (n Σx²): 1 if all are equal, 1/n if one has everything, None if nobody has anything.

    Jain, Chiu and Hawe 1984.
    """
    x = np.asarray(values, np.float64)
    squares = float((x**2).sum())
    return float(x.sum()) ** 2 / (len(x) * squares) if squares > 0 else None


def num_tenants(run: Run) -> int:
    """Different tenants of the workload; requests that name none count as one more."""
    return len(_tenants(run)[1])


def tenant_table(
    run: Run, levels: ServiceLevels | None = None, warmup: float = 0.0, cooldown: float = 0.0
) -> pd.DataFrame:
    """A row a tenant, the most served first, over the measured window (`analysis.metrics.window`).

    Columns:
        tenant, offered, completed: its requests that arrived in the window.
        service, service_share: weighted tokens that it got inside the window, and its share of all.
        ttft_mean, ttft_p99, e2e_mean: seconds, NaN where undefined.
        attainment: share of its offered requests that met `levels`; only with them.
    """
    measured = window(run, warmup, cooldown)
    codes, tenants = _tenants(run)
    frame = request_metrics(run)[["ttft", "e2e"]].astype("float64")
    frame["tenant"] = codes
    frame["completed"] = completed(run)
    if levels is not None:
        frame["met"] = meets(run, levels)
    groups = frame[measured.member].groupby("tenant")
    # A token at the very start of the window counts, as in the throughput of the summary.
    edges = [np.nextafter(measured.start, -np.inf), measured.end]
    got = np.diff(service(run, edges).served, axis=0)[0]
    table = pd.DataFrame(
        {
            "tenant": tenants,
            "offered": groups.size(),
            "completed": groups["completed"].sum(),
            "service": got,
            "service_share": got / got.sum() if got.sum() > 0 else np.nan,
            "ttft_mean": groups["ttft"].mean(),
            "ttft_p99": groups["ttft"].quantile(0.99),
            "e2e_mean": groups["e2e"].mean(),
        },
        index=pd.RangeIndex(len(tenants)),
    )
    if levels is not None:
        table["attainment"] = groups["met"].mean()
    table = table.fillna({"offered": 0, "completed": 0}).astype({"offered": int, "completed": int})
    return table.sort_values(["service", "tenant"], ascending=[False, True], ignore_index=True)


def _tenants(run: Run) -> tuple[NDArray[np.int64], list[str]]:
    """[requests] number of each request's tenant, and their names."""
    names = run.requests["tenant"].fillna(NO_TENANT).to_numpy(str)
    tenants, codes = np.unique(names, return_inverse=True)
    return codes, [str(name) for name in tenants]
