"""How many requests wait and run at each moment, exact to the event, over all replicas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tinyllm.engine.record.reader import Run

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """A step function of time: 0 before `times[0]`, then `values[i]` from `times[i]` on.

    Attributes:
        times: [n] seconds, strictly rising.
        values: [n] what holds from that time to the next.
    """

    times: Floats
    values: Floats

    @classmethod
    def from_changes(cls, changes: Iterable[tuple[ArrayLike, int]]) -> Curve:
        """The running sum of `(times, change of the value at each of them)`; a NaN time never comes."""
        pairs = [(np.asarray(times, np.float64), change) for times, change in changes]
        moments = np.concatenate([times for times, _ in pairs])
        deltas = np.concatenate([np.full(len(times), change) for times, change in pairs])
        real = ~np.isnan(moments)
        times, where = np.unique(moments[real], return_inverse=True)
        return cls(times, np.cumsum(np.bincount(where, deltas[real], len(times))))

    def means(self, edges: ArrayLike) -> Floats:
        """[len(edges) − 1] time averages between neighbouring edges (seconds, strictly rising)."""
        edges = np.asarray(edges, np.float64)
        if not len(self.times):
            return np.zeros(len(edges) - 1)
        areas = np.concatenate([[0.0], np.cumsum(self.values[:-1] * np.diff(self.times))])
        place = np.searchsorted(self.times, edges, side="right") - 1
        inside = np.maximum(place, 0)
        area = areas[inside] + self.values[inside] * (edges - self.times[inside])
        return np.diff(np.where(place < 0, 0.0, area)) / np.diff(edges)


def waiting(run: Run) -> Curve:
    """Requests that have arrived and do not run: not admitted yet, or preempted. Refused ones never count."""
    arrival, first_scheduled, finished = _life(run)
    ended_waiting = np.where(_never_admitted(run) | _ended_preempted(run), finished, np.nan)
    return Curve.from_changes(
        [
            (arrival, 1),
            (first_scheduled, -1),
            (_event_times(run, "preempted"), 1),
            (_event_times(run, "resumed"), -1),
            (ended_waiting, -1),
        ]
    )


def running(run: Run) -> Curve:
    """Requests that hold a seat of the engine: admitted, not preempted, not finished."""
    _, first_scheduled, finished = _life(run)
    ended_running = np.where(_never_admitted(run) | _ended_preempted(run), np.nan, finished)
    return Curve.from_changes(
        [
            (first_scheduled, 1),
            (_event_times(run, "preempted"), -1),
            (_event_times(run, "resumed"), 1),
            (ended_running, -1),
        ]
    )


def seconds(run: Run, column: str) -> Floats:
    """A time column of `requests` for arithmetic: float64, NaN where it is null."""
    return run.requests[column].to_numpy(np.float64, na_value=np.nan)


def _life(run: Run) -> tuple[Floats, Floats, Floats]:
    """Arrival, first schedule and end of each request, NaN where refused or not (yet) so far."""
    refused = (run.requests["finish_reason"] == "rejected").to_numpy(bool, na_value=False)
    arrival, scheduled, finished = (
        np.where(refused, np.nan, seconds(run, column))
        for column in ("arrival", "first_scheduled", "finished")
    )
    return arrival, scheduled, finished


def _never_admitted(run: Run) -> NDArray[np.bool_]:
    return np.isnan(seconds(run, "first_scheduled"))


def _ended_preempted(run: Run) -> NDArray[np.bool_]:
    """Whether the request's last preemption was not followed by a resumption."""
    counts = {
        name: run.events.loc[run.events["event"] == name, "request_id"].value_counts()
        for name in ("preempted", "resumed")
    }
    ids = run.requests["request_id"]
    lost, back = (
        counts[name].reindex(ids).to_numpy(np.float64, na_value=0.0) for name in ("preempted", "resumed")
    )
    return lost > back


def _event_times(run: Run, name: str) -> Floats:
    return run.events.loc[run.events["event"] == name, "time"].to_numpy(np.float64)
