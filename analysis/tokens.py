"""The time of every output token, rebuilt from `spans` and `steps.end` without a log row a token."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tinyllm.engine.record.reader import Run

_STEPS_PER_REPLICA = 1 << 40
"""More steps than a replica can have: `replica * this + step` orders the steps of all replicas."""


class TokenTimes(NamedTuple):
    """Output tokens, ordered by request and then by time.

    Attributes:
        request: [num_tokens] row number of the token's request in `run.requests`.
        time: [num_tokens] seconds since the start of the run.
    """

    request: NDArray[np.int64]
    time: NDArray[np.float64]


class TokenGaps(NamedTuple):
    """Gaps between neighbouring output tokens of a request (inter-token latencies, ITL).

    Attributes:
        request: [num_gaps] row number of the request in `run.requests`.
        gap: [num_gaps] seconds.
    """

    request: NDArray[np.int64]
    gap: NDArray[np.float64]


def token_times(run: Run) -> TokenTimes:
    """When each output token was there: the end of the step that sampled it.

    A decode span samples in each of its steps, a prefill span `sampled` tokens in its last. Steps that a cut
    log lacks have no token times.
    """
    keys, ends = _step_ends(run)
    spans = run.spans
    replica = spans["replica"].to_numpy(np.int64)
    last = spans["last_step"].to_numpy(np.int64)
    sampled = spans["sampled"].to_numpy(np.int64)
    decode = (spans["phase"] == "decode").to_numpy(bool)
    begin = np.where(decode, spans["first_step"].to_numpy(np.int64), last)
    request = pd.Index(run.requests["request_id"]).get_indexer(pd.Index(spans["request_id"]))

    position = np.searchsorted(keys, replica * _STEPS_PER_REPLICA + begin)
    known = np.searchsorted(keys, replica * _STEPS_PER_REPLICA + last, side="right") - position
    count = np.where(decode, np.minimum(sampled, known), np.where(known > 0, sampled, 0))
    kept = np.flatnonzero((count > 0) & (request >= 0))
    kept = kept[np.lexsort((ends[position[kept]], request[kept]))]

    count = count[kept]
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    within[~np.repeat(decode[kept], count)] = 0
    return TokenTimes(
        request=np.repeat(request[kept], count),
        time=ends[np.repeat(position[kept], count) + within],
    )


def token_gaps(times: TokenTimes) -> TokenGaps:
    """Inter-token latencies of all requests, pooled."""
    same = times.request[1:] == times.request[:-1]
    return TokenGaps(request=times.request[1:][same], gap=np.diff(times.time)[same])


def _step_ends(run: Run) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Sorted keys of the logged steps, and the `end` of each."""
    steps = run.steps
    keys = steps["replica"].to_numpy(np.int64) * _STEPS_PER_REPLICA + steps["step"].to_numpy(np.int64)
    order = np.argsort(keys, kind="stable")
    return keys[order], steps["end"].to_numpy(np.float64)[order]
