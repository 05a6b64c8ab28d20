"""How a stream of tokens feels to its reader: Etalon's fluidity index and Andes' QoE; see docs/metrics.md.

Both compare the time of every token with an ideal stream: the first token `ttft` seconds after the arrival,
then one every `tpot` seconds. They differ in what a late token costs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.tokens import token_times
from tinyllm.engine.record.reader import Run
from tinyllm.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_TOLERANCE = 1e-9
"""Seconds by which a token may miss its deadline: the log's times are sums of floats."""


def streaming_metrics(run: Run, ttft: float, tpot: float) -> pd.DataFrame:
    """Columns `fluidity_index` and `qoe`, a row for each row of `run.requests`, NaN where there is no token.

    Args:
        run: what `read_run` gives.
        ttft: seconds from the arrival in which the first token is due.
        tpot: seconds a token after that.

    Raises:
        InputError: a time is not above 0.
    """
    if not (ttft > 0 and tpot > 0):
        raise InputError(f"ttft {ttft:g} s and tpot {tpot:g} s of the ideal stream must be above 0")
    tokens = token_times(run)
    arrival = run.requests["arrival"].to_numpy(np.float64)
    delay = tokens.time - arrival[tokens.request]
    count = np.bincount(tokens.request, minlength=len(arrival))
    return pd.DataFrame(
        {
            "fluidity_index": fluidity_index(delay, count, ttft, tpot),
            "qoe": quality_of_experience(delay, count, ttft, tpot),
        }
    )


def fluidity_index(delay: Floats, count: Ints, ttft: float, tpot: float) -> Floats:
    """[requests] The share of token deadlines that were met (Agrawal et al. 2024), NaN without tokens.

    Time that a token is early is slack for the next ones. A token that misses its deadline misses also those
    that pass while it is waited for, one each `tpot`, and the slack is used up.

    Args:
        delay: [tokens] seconds from the arrival to each token, ordered by request, then by time.
        count: [requests] tokens of each.
        ttft, tpot: seconds until the first deadline, and between the next ones.
    """
    slack = np.zeros(len(count))
    missed, total = np.zeros(len(count)), np.zeros(len(count))
    gap = np.diff(delay, prepend=0.0)
    for position, request, token in _by_position(count):
        due = (ttft if position == 0 else tpot) + slack[request]
        taken = delay[token] if position == 0 else gap[token]
        late = taken - due
        misses = np.where(late > _TOLERANCE, np.floor(late / tpot) + 1, 0.0)
        slack[request] = np.where(misses > 0, 0.0, np.maximum(-late, 0.0))
        missed[request] += misses
        total[request] += np.maximum(misses, 1.0)
    share: Floats = np.full(len(count), np.nan)
    np.divide(total - missed, total, out=share, where=total > 0)
    return share


def quality_of_experience(delay: Floats, count: Ints, ttft: float, tpot: float) -> Floats:
    """[requests] Andes' QoE (Liu et al. 2024), from 0 to 1, NaN without tokens. Arguments as `fluidity_index`.

    A reader takes `tpot` seconds for a token and so falls behind a slow stream, but gains nothing from a fast
    one. QoE is the area under the tokens read over time, divided by that of the ideal stream, at most 1, both
    until the last token is read.
    """
    first = np.repeat(np.cumsum(count) - count, count)
    position = np.arange(len(delay)) - first
    request = np.repeat(np.arange(len(count)), count)
    # A token is begun when it is there and the one before is read: begin[i] = max(delay[i], begin[i-1] + tpot).
    begin = pd.Series(delay - position * tpot).groupby(request).cummax().to_numpy() + position * tpot
    total = np.bincount(request, begin, len(count))
    end = np.full(len(count), np.nan)
    end[request] = begin + tpot  # the last token of each request is written last
    read = count * end - total - count * tpot / 2
    ramp = np.clip(end - ttft, 0.0, count * tpot)
    ideal = ramp**2 / (2 * tpot) + count * np.maximum(end - ttft - count * tpot, 0.0)
    with np.errstate(divide="ignore"):
        # Without any ideal area everything was read before anything was due.
        score: Floats = np.minimum(read / ideal, 1.0)
    return score


def _by_position(count: Ints) -> Iterator[tuple[int, Ints, Ints]]:
    """For each position in a stream: the requests that have a token there, and the index of that token."""
    start = np.cumsum(count) - count
    longest_first = np.argsort(-count, kind="stable")
    lengths = np.sort(count)
    for position in range(int(lengths[-1]) if len(lengths) else 0):
        reaching = len(count) - int(np.searchsorted(lengths, position, side="right"))
        request = longest_first[:reaching]
        yield position, request, start[request] + position
