"""Arrival processes for the generators: each has a mean rate that is given apart, and starts at 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tinyllm.errors import InputError
from traces.formats.cells import INT64_MAX
from traces.modeltext import parse_model

Seconds = NDArray[np.float64]

MOST_CV: Final = 100.0


class ArrivalModel(Protocol):
    """An arrival process. A new one: a class here and a line in `ARRIVAL_MODELS`."""

    def sample(self, rng: np.random.Generator, count: int, rate: float) -> NDArray[np.int64]:
        """Arrival times in ns, int64 [count], the first 0, of mean rate `rate` a second.

        Raises:
            InputError: they take more than the 292 years that 64 bits hold.
        """
        ...


@dataclass(frozen=True)
class Gamma:
    """Renewal process whose gaps are Gamma, shape 1/cv²: 0 is even, 1 Poisson, above 1 bursty."""

    cv: float = 1.0

    def __post_init__(self) -> None:
        _require(0 <= self.cv <= MOST_CV, "gamma", f"cv must lie between 0 and {MOST_CV:g}")

    def sample(self, rng: np.random.Generator, count: int, rate: float) -> NDArray[np.int64]:
        if self.cv == 0:
            return _from_gaps(np.full(count - 1, 1 / rate), rate)
        return _from_gaps(rng.gamma(1 / self.cv**2, self.cv**2 / rate, count - 1), rate)


@dataclass(frozen=True)
class Poisson:
    """Independent arrivals: exponential gaps, CV 1."""

    def sample(self, rng: np.random.Generator, count: int, rate: float) -> NDArray[np.int64]:
        return Gamma(1.0).sample(rng, count, rate)


@dataclass(frozen=True)
class Weibull:
    """Renewal process whose gaps are Weibull, its shape the one that has this CV."""

    cv: float = 1.0

    def __post_init__(self) -> None:
        _require(0.01 <= self.cv <= MOST_CV, "weibull", f"cv must lie between 0.01 and {MOST_CV:g}")

    def sample(self, rng: np.random.Generator, count: int, rate: float) -> NDArray[np.int64]:
        return _from_gaps(weibull_gaps(rng, count - 1, weibull_shape(self.cv), rate), rate)


@dataclass(frozen=True)
class OnOff:
    """Bursts: Poisson arrivals while on, none while off; both phases last exponential times.

    Attributes:
        on, off: mean seconds of the phases. The rate while on is (on + off) / on times the mean rate.
    """

    on: float = 10.0
    off: float = 30.0

    def __post_init__(self) -> None:
        _require(0 < self.on <= 1e9, "on-off", "on must be seconds above 0")
        _require(0 <= self.off <= 1e9, "on-off", "off must be seconds, 0 or more")

    def sample(self, rng: np.random.Generator, count: int, rate: float) -> NDArray[np.int64]:
        duty = self.on / (self.on + self.off)
        busy = np.cumsum(rng.exponential(duty / rate, count))
        # Time while on runs without the gaps; each arrival comes after the off phases before it.
        ends, offs = np.empty(0), np.zeros(1)
        while not len(ends) or ends[-1] <= busy[-1]:
            start = ends[-1] if len(ends) else 0.0
            ends = np.concatenate([ends, start + np.cumsum(rng.exponential(self.on, 1024))])
            offs = np.concatenate([offs, offs[-1] + np.cumsum(rng.exponential(self.off, 1024))])
            if start + offs[-1] > INT64_MAX / 1e9:
                raise _too_long(count, rate)
        return _from_times(busy + offs[np.searchsorted(ends, busy, side="right")], rate)


@dataclass(frozen=True)
class Diurnal:
    """Poisson arrivals whose rate is rate · (1 + amplitude · cos(2π (t − peak) / period)).

    Attributes:
        amplitude: 0 is Poisson, 1 falls to nothing in the trough.
        period, peak: seconds.
    """

    amplitude: float = 0.8
    period: float = 86_400.0
    peak: float = 43_200.0

    def __post_init__(self) -> None:
        _require(0 <= self.amplitude <= 1, "diurnal", "amplitude must lie between 0 and 1")
        _require(0 < self.period <= 1e9, "diurnal", "period must be seconds above 0")
        _require(0 <= self.peak <= self.period, "diurnal", "peak must lie inside the period")

    def sample(self, rng: np.random.Generator, count: int, rate: float) -> NDArray[np.int64]:
        even = np.cumsum(rng.exponential(1 / rate, count))
        swing = self.amplitude * self.period / (2 * math.pi)
        # Inverts t + swing · (sin(…t…) + sin(…0…)) = even by bisection: it grows in t, and the sines stay in ±1.
        low, high = even - 2 * swing, even + 2 * swing
        start = math.sin(2 * math.pi * self.peak / self.period)
        for _ in range(64):
            middle = (low + high) / 2
            phase = 2 * math.pi * (middle - self.peak) / self.period
            late = middle + swing * (np.sin(phase) + start) > even
            low, high = np.where(late, low, middle), np.where(late, middle, high)
        return _from_times(np.maximum.accumulate(high), rate)


ARRIVAL_MODELS: Final[dict[str, Callable[..., ArrivalModel]]] = {
    "poisson": Poisson,
    "gamma": Gamma,
    "weibull": Weibull,
    "on-off": OnOff,
    "diurnal": Diurnal,
}


def parse_arrivals(text: str) -> ArrivalModel:
    """`name:key=value,…` to a model, for instance `weibull:cv=2` or `on-off:on=10,off=30`.

    Raises:
        InputError: unknown name or key, a value that is no number or out of range.
    """
    return parse_model("--arrivals", text, ARRIVAL_MODELS)


def weibull_shape(cv: float) -> float:
    """The Weibull shape k of a CV: cv² = Γ(1 + 2/k) / Γ(1 + 1/k)² − 1, which falls in k."""
    wanted = math.log1p(cv**2)
    low, high = 0.05, 200.0
    for _ in range(80):
        middle = math.sqrt(low * high)
        above = math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle) > wanted
        low, high = (middle, high) if above else (low, middle)
    return high


def weibull_gaps(rng: np.random.Generator, count: int, shape: float, rate: float) -> Seconds:
    """Gaps in seconds, float64 [count], of mean 1 / rate."""
    mean_of_unit = math.exp(math.lgamma(1 + 1 / shape))
    return rng.weibull(shape, count) / (mean_of_unit * rate)


def _from_gaps(gaps_s: Seconds, rate: float) -> NDArray[np.int64]:
    with np.errstate(over="ignore"):  # an infinite gap is refused like every sum that is too long
        gaps = gaps_s * 1e9
        span = gaps.sum()
    if not span <= INT64_MAX:
        raise _too_long(len(gaps) + 1, rate)
    # Whole nanoseconds first, then the sum: exact, whatever the number of rows.
    return np.concatenate([[0], np.cumsum(np.rint(gaps).astype(np.int64))]).astype(np.int64)


def _from_times(times_s: Seconds, rate: float) -> NDArray[np.int64]:
    return _from_gaps(np.diff(times_s), rate)


def _too_long(count: int, rate: float) -> InputError:
    return InputError(f"--rate: {count} requests at {rate:g}/s take more than 292 years; give a larger rate")


def _require(holds: bool, name: str, rule: str) -> None:
    if not holds:
        raise InputError(f"--arrivals {name}: {rule}")
