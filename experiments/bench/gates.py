"""Gates: what must hold for a report to mean anything. A gate that fails names what it found; nothing is hidden."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any, Final

from experiments.bench.figures import LATENCIES, QUANTILES
from experiments.bench.jobs import Served
from experiments.bench.workloads import Workload

SHOWN_FAULTS: Final = 5

LEAST_LAG_S: Final = 0.05
"""Mean lag that is none: a thread's turn on a busy machine."""

Outputs = dict[str, tuple[int, ...]]
"""Token ids by request id."""


@dataclass
class Gate:
    """One rule and what it found.

    Attributes:
        checked: how many runs, rows or requests it looked at.
        faults: in words, the first few of them.
        num_faults: all of them.
    """

    name: str
    checked: int = 0
    faults: list[str] = field(default_factory=list)
    num_faults: int = 0

    @property
    def ok(self) -> bool:
        return self.num_faults == 0

    def check(self, where: str, faults: Iterator[str]) -> None:
        """Take in what a rule says of one run, row or pair."""
        self.checked += 1
        for fault in faults:
            self.num_faults += 1
            if len(self.faults) < SHOWN_FAULTS:
                self.faults.append(f"{where}: {fault}")


def accounted(workload: Workload, served: Sequence[Served]) -> Iterator[str]:
    """Every request is answered exactly once, and nothing else is."""
    asked = {request.request_id for request in workload.requests}
    answers = Counter(one.request_id for one in served)
    for request_id in sorted(asked - answers.keys()):
        yield f"request {request_id} has no answer"
    for request_id in sorted(answers.keys() - asked):
        yield f"request {request_id} was answered and never asked for"
    for request_id, count in sorted(answers.items()):
        if count > 1:
            yield f"request {request_id} was answered {count} times"


def lengths(workload: Workload, served: Sequence[Served]) -> Iterator[str]:
    """An output has the length asked for, or no more where EOS ends it; it has an end and no error."""
    asked = {request.request_id: request.max_tokens for request in workload.requests}
    for one in served:
        wanted, got = asked.get(one.request_id, 0), len(one.token_ids)
        if one.error is not None:
            yield f"request {one.request_id} failed: {one.error}"
        elif one.finish_reason is None:
            yield f"request {one.request_id} has no end"
        elif (workload.ignore_eos or one.finish_reason == "length") and got != wanted:
            yield f"request {one.request_id} has {got} tokens of {wanted}"
        elif not 1 <= got <= wanted:
            yield f"request {one.request_id} has {got} tokens, asked for at most {wanted}"


def times(workload: Workload, served: Sequence[Served]) -> Iterator[str]:
    """Each token has a time, none earlier than the one before it, than its request's hand-over or scheduling."""
    for one in served:
        stamps = [one.submitted_s, *one.token_times_s]
        if one.first_scheduled_s is not None:
            stamps.insert(1, one.first_scheduled_s)
        if len(one.token_times_s) != len(one.token_ids):
            yield f"request {one.request_id} has {len(one.token_times_s)} times for {len(one.token_ids)} tokens"
        if not all(math.isfinite(stamp) for stamp in stamps):
            yield f"request {one.request_id} has a time that is no number"
        elif any(late < early for early, late in pairwise(stamps)):
            yield f"request {one.request_id} has times that step back"


def submission(workload: Workload, served: Sequence[Served], max_share: float) -> Iterator[str]:
    """Requests are handed over when they are due: never early, and hardly late beside their latency."""
    due = {request.request_id: request.arrival_s for request in workload.requests}
    ended = [one for one in served if one.token_times_s and one.request_id in due]
    for one in ended:
        if one.submitted_s < due[one.request_id]:
            yield f"request {one.request_id} was handed over before it was due"
    if not ended:
        return
    lag = sum(one.submitted_s - due[one.request_id] for one in ended) / len(ended)
    latency = sum(one.token_times_s[-1] - due[one.request_id] for one in ended) / len(ended)
    if lag > max(LEAST_LAG_S, max_share * latency):
        yield f"requests were handed over {lag:.3g} s late on the average, {lag / latency:.1%} of their latency"


RUN_RULES: Final[dict[str, Callable[[Workload, Sequence[Served]], Iterator[str]]]] = {
    "every request is accounted for exactly once": accounted,
    "every output has the length asked for": lengths,
    "token times never step back": times,
}


def percentile_order(row: Mapping[str, Any]) -> Iterator[str]:
    """p50 ≤ p95 ≤ p99 of each latency, or none of them is defined."""
    for name in LATENCIES:
        values = [row.get(f"{name}_{quantile}") for quantile in QUANTILES]
        known = [value for value in values if value is not None and not math.isnan(value)]
        if known and (len(known) < len(values) or any(high < low for low, high in pairwise(known))):
            yield f"{name} has p50, p95, p99 of {', '.join(map(str, values))}"


def agreement(ours: Outputs, theirs: Outputs) -> Iterator[str]:
    """Both give the same tokens for every request."""
    for request_id in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(request_id, ()), theirs.get(request_id, ())
        for position in range(max(len(mine), len(other))):
            pair = [each[position] if position < len(each) else "none" for each in (mine, other)]
            if pair[0] != pair[1]:
                yield f"request {request_id}, output token {position}: {pair[0]} and {pair[1]}"
                break


class Gates:
    """All gates of a run; fed while it goes on, asked at its end.

    Args:
        max_lag_share: see `submission`.
    """

    def __init__(self, max_lag_share: float) -> None:
        self._max_lag_share = max_lag_share
        self._gates: dict[str, Gate] = {}
        self._outputs: dict[str, dict[str, Outputs]] = {}

    def check_run(self, engine: str, repeat: int, workload: Workload, served: Sequence[Served]) -> None:
        """Judge one run."""
        where = f"{engine}, {workload.name}, repeat {repeat + 1}"
        for name, rule in RUN_RULES.items():
            self.gate(name).check(where, rule(workload, served))
        late = submission(workload, served, self._max_lag_share)
        self.gate("requests are handed over when they are due").check(where, late)
        if workload.kind == "correctness":
            outputs = {one.request_id: tuple(one.token_ids) for one in served}
            self._outputs.setdefault(workload.name, {})[f"{engine}, repeat {repeat + 1}"] = outputs

    def check_agreement(self) -> None:
        """Compare the tokens of the correctness cohorts, each engine and repeat with each other one."""
        for workload, by_engine in self._outputs.items():
            for (ours, mine), (theirs, other) in combinations(by_engine.items(), 2):
                where = f"{workload}, {ours} and {theirs}"
                self.gate("engines give equal tokens").check(where, agreement(mine, other))

    def check_percentiles(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Judge the rows of a summary."""
        for row in rows:
            self.gate("percentiles rise").check(f"{row['engine']}, {row['workload']}", percentile_order(row))

    def check_complete(self, missing: Sequence[str]) -> None:
        """Judge whether everything planned was run; `missing` says what was not."""
        self.gate("everything planned was run").check("plan", iter(missing))

    def gate(self, name: str) -> Gate:
        """The gate of a name, new where there is none yet."""
        return self._gates.setdefault(name, Gate(name))

    def all(self) -> list[Gate]:
        """All gates that looked at anything."""
        return list(self._gates.values())
