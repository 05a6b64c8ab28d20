"""Running measures of a trace: token counts and arrivals."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

BIN_NS: Final = 10 * 1_000_000_000
"""Bin of the index of dispersion: wide enough for clocks that tick in seconds."""

QUIET_START: Final = 3.0
"""A first tenth of the rows that arrives slower than the rest by more than this is worth a warning."""


@dataclass(frozen=True)
class LengthStats:
    """Exact statistics of token counts; quantiles interpolate linearly between neighbours, as numpy does."""

    mean: float
    median: float
    p95: float
    p99: float
    max: int


def length_stats(counts: Counter[int]) -> LengthStats:
    """Exact statistics of a multiset of token counts that is not empty."""
    values = sorted(counts)
    ranks = list(accumulate(counts[value] for value in values))
    total = ranks[-1]

    def quantile(q: float) -> float:
        below = math.floor(q * (total - 1))
        low = values[bisect_right(ranks, below)]
        high = values[bisect_right(ranks, min(below + 1, total - 1))]
        return low + (q * (total - 1) - below) * (high - low)

    mean = sum(value * count for value, count in counts.items()) / total
    return LengthStats(mean, quantile(0.5), quantile(0.95), quantile(0.99), values[-1])


class Arrivals:
    """Sums over arrivals in order; Python integers keep them exact."""

    def __init__(self) -> None:
        self.rows = 0
        self.distinct = 0
        self._first = self._last = 0
        self._gap_squares = 0
        # Number and rows of each bin that has any, in order; 16 bytes a bin, where a dict takes 100.
        self._bins = array("q")
        self._bin_rows = array("q")
        self._whole_seconds = True

    def add(self, arrival_ns: int) -> None:
        if self.rows == 0:
            self._first = self._last = arrival_ns
            self.distinct = 1
        gap = arrival_ns - self._last
        self.rows += 1
        self.distinct += gap > 0
        self._gap_squares += gap * gap
        self._last = arrival_ns
        index = (arrival_ns - self._first) // BIN_NS
        if self._bins and self._bins[-1] == index:
            self._bin_rows[-1] += 1
        else:
            self._bins.append(index)
            self._bin_rows.append(1)
        self._whole_seconds &= arrival_ns % 1_000_000_000 == 0

    @property
    def span_ns(self) -> int:
        return self._last - self._first

    def rate(self) -> float | None:
        """Rows / span, per second; None where the span is 0."""
        return self.rows * 1e9 / self.span_ns if self.span_ns else None

    def cv(self) -> float | None:
        """Population standard deviation / mean of the gaps; None where the span is 0."""
        if self.span_ns == 0:
            return None
        return math.sqrt((self.rows - 1) * self._gap_squares - self.span_ns**2) / self.span_ns

    def dispersion(self) -> float | None:
        """Population variance / mean of the rows in bins of 10 s; None where there is one bin only."""
        bins = self.span_ns // BIN_NS + 1
        if bins < 2:
            return None
        squares = sum(rows * rows for rows in self._bin_rows)
        return (bins * squares - self.rows**2) / (bins * self.rows)

    def warnings(self) -> list[str]:
        """What the clock and the course of the rate mean for whoever reads the numbers."""
        found = []
        if self.distinct < self.rows / 2:
            found.append(
                f"only {self.distinct:,} distinct times for {self.rows:,} rows: the clock ticks, "
                "the rows of a tick act as a batch, and the CV is the tick's; read the index of dispersion, "
                "or draw arrivals from within the tick with --spread-ticks"
            )
        if self._whole_seconds and self.rows > 1:
            found.append("all times are whole seconds: what happens inside a second is not in the trace")
        slower = self._quiet_start()
        if slower is not None:
            found.append(
                f"the first tenth of the rows arrives {slower:.0f} times slower than the rest: "
                "a head is not like this trace; take a window of its busy part"
            )
        return found

    def _quiet_start(self) -> float | None:
        if self.rows < 100:
            return None
        early = bins = 0
        for index, rows in zip(self._bins, self._bin_rows, strict=True):
            early, bins = early + rows, index + 1
            if early >= self.rows / 10:
                break
        later_bins = self.span_ns // BIN_NS + 1 - bins
        if not later_bins:
            return None
        slower = (self.rows - early) / later_bins * bins / early
        return slower if slower > QUIET_START else None
