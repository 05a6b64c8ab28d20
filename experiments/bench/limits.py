"""What a good request meets: multiples of what the first engine needs for a prompt of that length alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.bench.figures import good
from experiments.bench.suite import Limits

Row = dict[str, Any]
Seconds = NDArray[np.float64]


def limits_alone(requests: pd.DataFrame, factors: Limits) -> list[Row]:
    """The limits at the prompt lengths that were tried alone.

    Args:
        requests: as `request_figures` gives them, of probes and others.
    """
    probes = requests[(requests["kind"] == "probe") & requests["completed"]]
    ordered = probes.sort_values(["group", "prompt_tokens"], kind="stable")
    return [
        {
            "group": group,
            "prompt_tokens": prompt_tokens,
            "alone_ttft": ttft,
            "alone_tpot": None if math.isnan(tpot) else tpot,
            "ttft": factors.ttft * ttft,
            "tpot": None if math.isnan(tpot) else factors.tpot * tpot,
        }
        for group, prompt_tokens, ttft, tpot in zip(
            *(ordered[name].tolist() for name in ("group", "prompt_tokens", "ttft", "tpot")), strict=True
        )
    ]


def judged(requests: pd.DataFrame, limits: Sequence[Row]) -> pd.DataFrame:
    """With a column `good`, None where there is no limit to judge by: between two probes limits are interpolated."""
    requests = requests.assign(good=None)
    for group in {row["group"]: None for row in limits}:
        mine = ((requests["group"] == group) & (requests["kind"] == "open-loop")).to_numpy(bool)
        of_group = [row for row in limits if row["group"] == group]
        at = requests.loc[mine, "prompt_tokens"].to_numpy(np.float64)
        levels = pd.DataFrame({name: _interpolated(at, of_group, name) for name in ("ttft", "tpot")})
        requests.loc[mine, "good"] = good(requests[mine], levels)
    return requests


def _interpolated(at: Seconds, limits: Sequence[Row], name: str) -> Seconds:
    known = [row for row in limits if row[name] is not None]
    if not known:
        return np.full(len(at), np.inf)
    places, levels = [row["prompt_tokens"] for row in known], [row[name] for row in known]
    return np.asarray(np.interp(at, places, levels), np.float64)
