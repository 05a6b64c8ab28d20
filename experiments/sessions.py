"""`--sessions`, `--think-time` and `--client-timeout`: when the turns of conversations come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd

from experiments.options import ReplayOptions
from tinyllm.engine.record.workload import NS, ArrivalRecord
from tinyllm.engine.sessions import ThinkTime, Turn, plan_turns
from tinyllm.errors import InputError

SESSIONS: Final = ("open", "closed")
"""open: every turn at its recorded time; closed: when the turn before it has ended and its client has thought."""


def check_options(options: ReplayOptions) -> None:
    """Find what is wrong with these options, before the trace is read.

    Raises:
        InputError: an unknown kind of session, a think time out of range, or for open sessions.
    """
    if options.sessions not in SESSIONS:
        raise InputError(f"--sessions {options.sessions}: unknown; choose {' or '.join(SESSIONS)}")
    think = options.think_time
    if think is not None and options.sessions != "closed":
        raise InputError(f"--think-time {think:g}: only --sessions closed has think times; add it")
    if think is not None and not 0 <= think <= 1e9:
        raise InputError(f"--think-time {think:g}: give seconds, from 0 to 1e9")


def turns_of(
    records: Sequence[ArrivalRecord],
    elapsed_ns: Mapping[str, int],
    options: ReplayOptions,
    prefix_block_size: int | None,
) -> dict[str, Turn]:
    """The later turns of the workload's sessions.

    Args:
        elapsed_ns: how long the traced service took for a request, by id, where the trace says so.

    Raises:
        InputError: closed sessions of a trace that has none.
    """
    if options.sessions == "closed" and all(record.session is None for record in records):
        raise InputError(
            "--sessions closed: the trace has no sessions; give one that has (tinyllm trace info), or leave it out"
        )
    return plan_turns(records, prefix_block_size, _think_time(options.think_time, elapsed_ns))


def _think_time(seconds: float | None, elapsed_ns: Mapping[str, int]) -> ThinkTime:
    """One number, or from the recorded end to the next start; where no end is recorded, from start to start."""
    if seconds is not None:
        fixed_ns = round(seconds * NS)
        return lambda before, turn: fixed_ns

    def recorded(before: ArrivalRecord, turn: ArrivalRecord) -> int:
        return max(0, turn.arrival_ns - before.arrival_ns - elapsed_ns.get(before.request_id, 0))

    return recorded


def turn_facts(turns: Mapping[str, Turn], requests: pd.DataFrame) -> dict[str, int]:
    """How many later turns were submitted, and how many of them before the turn before them had ended.

    Args:
        requests: the table of the run.
    """
    submitted = dict(zip(requests["request_id"], requests["submitted"], strict=True))
    # A refused request ended when it was submitted; one that is unfinished has no end.
    ends = requests["finished"].where(requests["finish_reason"] != "rejected", requests["submitted"])
    ended = dict(zip(requests["request_id"], ends, strict=True))
    later = [
        (submitted[name], ended[turn.after]) for name, turn in turns.items() if submitted[name] is not pd.NA
    ]
    overtaking = sum(end is pd.NA or end > start for start, end in later)
    return {"later": len(later), "overtaking": overtaking}


def session_facts(options: ReplayOptions) -> dict[str, Any]:
    """What the manifest says of the clients."""
    times = {"think_time_s": options.think_time, "client_timeout_s": options.client_timeout}
    return {"sessions": options.sessions} | {name: s for name, s in times.items() if s is not None}
