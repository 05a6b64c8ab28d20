"""Replays of conversations: open and closed sessions, clients that give up, and what the run says of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.summary import summarize
from experiments.options import ReplayOptions
from experiments.progress import Report
from experiments.replay import replay
from experiments.resim import resimulate
from tinyllm.engine.record.reader import Run, read_run
from tinyllm.errors import IncompleteRunError
from traces.conversations import Conversations, generate_conversations
from traces.export import write_trace
from traces.lengths import LogNormal
from traces.schema import Provenance, Trace, TraceRow

S = 10**9
SECONDS_A_STEP = {"fast": 0.005, "slow": 0.05, "overloaded": 0.3}


@pytest.fixture
def make_sessions(tmp_path: Path) -> Callable[..., ReplayOptions]:
    """`make_sessions("slow", sessions="closed")`: 200 turns of conversations on a device with eight seats."""
    short = LogNormal(30, 0.5)
    shape = Conversations(
        turns=4, think=3.0, think_sigma=0.5, first=short, message=short, output=LogNormal(24, 0.6)
    )
    trace = write_trace(
        generate_conversations(shape, requests=200, seed=1, rate=4.0), tmp_path / "turns.parquet"
    )

    def make(device: str, **options: Any) -> ReplayOptions:
        cost = tmp_path / f"{device}.json"
        numbers = {"per_token_s": 5e-5, "per_seq_s": 0.0, "per_context_token_s": 0.0}
        cost.write_text(json.dumps({"kind": "linear", "base_s": SECONDS_A_STEP[device], **numbers}))
        out = tmp_path / f"{device}-{options.get('sessions', 'open')}"
        defaults = {"cost_model": str(cost), "num_gpu_blocks": 4000, "max_num_seqs": 8}
        return ReplayOptions(trace=trace, out=out, force=True, **{**defaults, **options})

    return make


@pytest.fixture
def hand_made(tmp_path: Path) -> Callable[..., ReplayOptions]:
    """`hand_made(rows, sessions="closed")`: rows under steps of 10 ms."""

    def make(rows: list[TraceRow], **options: Any) -> ReplayOptions:
        trace = Trace(iter(rows), Provenance("made by hand", "table", rows_in=len(rows), rows_out=len(rows)))
        cost = tmp_path / "step.json"
        numbers = {"per_token_s": 0.0, "per_seq_s": 0.0, "per_context_token_s": 0.0}
        cost.write_text(json.dumps({"kind": "linear", "base_s": 0.01, **numbers}))
        return ReplayOptions(
            trace=write_trace(trace, tmp_path / "rows.parquet", force=True),
            out=tmp_path / "run",
            force=True,
            **{"cost_model": str(cost), "num_gpu_blocks": 100, "block_size": 4, **options},
        )

    return make


def run_of(options: ReplayOptions) -> Run:
    replay(options)
    return read_run(options.out)


def rate(run: Run, table: str = "requests") -> float:
    arrival = getattr(run, table)["arrival"]
    return float(len(arrival) / (arrival.max() - arrival.min()))


def overtaking_warnings(run: Run) -> list[str]:
    return [line for line in summarize(run)["warnings"] if "--sessions closed" in line]


# ── what issue 4 must show ───────────────────────────────────────────────────────────────────────────


def test_under_load_closed_sessions_offer_less_and_open_ones_warn(
    make_sessions: Callable[..., ReplayOptions],
) -> None:
    closed = {device: run_of(make_sessions(device, sessions="closed")) for device in SECONDS_A_STEP}
    opened = {device: run_of(make_sessions(device)) for device in SECONDS_A_STEP}
    recorded = rate(closed["fast"], "workload")
    # The trace tells no ends, so a closed turn comes later by the whole latency of the one before it.
    assert 0.95 * recorded < rate(closed["fast"]) < recorded
    assert rate(closed["slow"]) < 0.8 * recorded
    assert rate(closed["overloaded"]) < 0.25 * recorded
    for run in opened.values():
        assert sorted(run.requests["arrival"]) == sorted(run.workload["arrival"])
        assert run.manifest["sessions"] == "open"
    for run in closed.values():
        assert overtaking_warnings(run) == [] and run.manifest["turns"]["overtaking"] == 0
        assert any("think time is the gap of the starts" in line for line in summarize(run)["warnings"])
    shares = [run.manifest["turns"]["overtaking"] / run.manifest["turns"]["later"] for run in opened.values()]
    assert shares == sorted(shares) and shares[0] < 0.05 < 0.95 < shares[2]
    (warning,) = overtaking_warnings(opened["overloaded"])
    later = opened["overloaded"].manifest["turns"]["later"]
    assert warning == (
        f"{shares[2]:.0%} of {later} later turns were submitted before the turn before them had ended: their "
        "history is only partly cached; --sessions closed"
    )
    # Who waits for the answer finds all of it in the cache.
    hits = [
        run.requests["cached_prompt_tokens"].sum() for run in (opened["overloaded"], closed["overloaded"])
    ]
    assert hits[0] < hits[1]


def test_a_closed_turn_arrives_at_the_end_of_the_turn_before_it_and_the_think_time(
    hand_made: Callable[..., ReplayOptions],
) -> None:
    rows = [TraceRow(0, 0, 5, 3, session="a"), TraceRow(1, S, 9, 2, session="a"), TraceRow(2, S, 1, 1)]
    run = run_of(hand_made(rows, sessions="closed"))
    assert run.requests.set_index("request_id")["arrival"].to_dict() == {"r0": 0.0, "r1": 1.03, "r2": 1.0}
    assert run.requests["submitted"].equals(run.requests["arrival"])
    assert run.workload["arrival"].tolist() == [0.0, 1.0, 1.0]
    assert run.manifest["turns"] == {"later": 1, "overtaking": 0, "guessed_thinks": 1}


def test_where_the_trace_tells_ends_the_client_thinks_from_the_end_on(
    hand_made: Callable[..., ReplayOptions],
) -> None:
    rows = [
        TraceRow(0, 0, 5, 3, session="a", elapsed_ns=4 * S // 10),
        TraceRow(1, S, 9, 2, session="a", elapsed_ns=3 * S),
        TraceRow(2, 2 * S, 12, 2, session="a"),  # before the recorded end of the turn before it: no thought
    ]
    run = run_of(hand_made(rows, sessions="closed"))
    assert run.requests.sort_values("source_row")["arrival"].tolist() == [0.0, 0.63, 0.65]
    assert run.manifest["turns"]["guessed_thinks"] == 0
    run = run_of(hand_made(rows, sessions="closed", speedup=2.0))
    assert run.requests.sort_values("source_row")["arrival"].tolist() == [0.0, 0.33, 0.35]


def test_one_think_time_for_all_is_what_the_manifest_says_and_nothing_is_guessed(
    hand_made: Callable[..., ReplayOptions],
) -> None:
    rows = [TraceRow(n, n * S, 5 + 4 * n, 3, session="a") for n in range(3)]
    run = run_of(hand_made(rows, sessions="closed", think_time=0.25))
    assert run.requests.sort_values("source_row")["arrival"].tolist() == [0.0, 0.28, 0.56]
    assert (run.manifest["sessions"], run.manifest["think_time_s"]) == ("closed", 0.25)
    assert run.manifest["turns"]["guessed_thinks"] == 0


def test_deadlines_move_with_the_turn(hand_made: Callable[..., ReplayOptions], tmp_path: Path) -> None:
    rows = [TraceRow(n, 0, 5, 9, session="a") for n in range(3)]
    options = hand_made(rows, sessions="closed", policy="edf", ttft_slo=0.05)
    run = run_of(options)
    assert run.requests.sort_values("source_row")["arrival"].tolist() == [0.0, 0.09, 0.18]
    assert run.workload["ttft_deadline"].tolist() == [0.05] * 3
    assert resimulate(options.out, tmp_path / "again") == []


# ── the prefix cache ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("second_prompt", "caches"), [(9, True), (6, False)])
def test_the_prefix_cache_is_on_where_a_turn_contains_its_history(
    hand_made: Callable[..., ReplayOptions], second_prompt: int, caches: bool
) -> None:
    rows = [TraceRow(0, 0, 5, 4, session="a"), TraceRow(1, S, second_prompt, 2, session="a")]
    run = run_of(hand_made(rows))
    assert run.manifest["config"]["enable_prefix_caching"] is caches
    # 5 + 4 tokens, of which the last is not computed: two blocks of 4.
    assert run.requests["cached_prompt_tokens"].tolist() == [0, 8 if caches else 0]


# ── re-simulation, and runs that end early ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("sessions", ["open", "closed"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_gpu_blocks": 100},
        {"client_timeout": 15.0},
        {"client_timeout": 15.0, "num_gpu_blocks": 100, "policy": "srpt", "predictor": "perfect"},
        {"max_queued_requests": 4},
        {"ttft_slo": 5.0, "early_rejection": "expired"},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_every_decision_is_made_again(
    make_sessions: Callable[..., ReplayOptions], tmp_path: Path, sessions: str, options: dict[str, Any]
) -> None:
    asked = make_sessions("overloaded", sessions=sessions, requests=100, **options)
    run = run_of(asked)
    assert (run.requests["cached_prompt_tokens"] > 0).any()
    reasons = set(run.requests["finish_reason"])
    assert ("abort" in reasons) == ("client_timeout" in options)
    assert resimulate(asked.out, tmp_path / "again") == []
    assert read_run(tmp_path / "again").manifest["turns"] == run.manifest["turns"]


def test_a_run_of_a_version_that_knew_no_sessions_is_made_again_without_inheritance(
    make_sessions: Callable[..., ReplayOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.workload.turns_of", lambda *arguments: {})
    options = make_sessions("slow", requests=60)
    replay(options)
    manifest = options.out / "manifest.json"
    known = json.loads(manifest.read_text())
    del known["sessions"]
    manifest.write_text(json.dumps(known))
    assert resimulate(options.out, tmp_path / "again") == []


@contextmanager
def _ctrl_c(total: int) -> Iterator[Report]:
    import signal

    def report(now: int, done: int) -> None:
        signal.raise_signal(signal.SIGINT)

    yield report


def test_after_ctrl_c_turns_that_never_came_are_unfinished_requests(
    make_sessions: Callable[..., ReplayOptions],
) -> None:
    options = make_sessions("fast", sessions="closed")
    with pytest.raises(IncompleteRunError, match="interrupted"):
        replay(options, _ctrl_c)
    run = read_run(options.out)
    assert run.status == "interrupted" and len(run.requests) == 200
    assert run.requests["request_id"].is_unique
    unfinished = run.requests[run.requests["finish_reason"] == "unfinished"]
    assert unfinished["submitted"].isna().any()


HOLDS_FIRST = '''
from tinyllm.policy.fcfs import FCFS


class HoldsTheFirst(FCFS):
    """Never starts the first request."""

    stable_waiting = False

    def key(self, view, now):
        return None if view.request_id == "r0" else super().key(view, now)
'''


@pytest.fixture
def holds_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "holds_first.py").write_text(HOLDS_FIRST)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "holds_first", raising=False)
    return "holds_first:HoldsTheFirst"


def test_a_stalled_run_counts_the_turns_that_wait_for_a_held_one(
    hand_made: Callable[..., ReplayOptions], holds_first: str
) -> None:
    rows = [TraceRow(n, n * S, 5, 3, session="ab"[n % 2]) for n in range(6)]
    options = hand_made(rows, sessions="closed", policy=holds_first)
    with pytest.raises(IncompleteRunError, match=r"r0 held by the policy.*; 2 later turns wait"):
        replay(options)
    run = read_run(options.out)
    reasons = run.requests.sort_values("source_row")["finish_reason"].tolist()
    assert run.status == "stalled" and reasons == ["unfinished", "length"] * 3


def test_a_client_that_gives_up_frees_a_stalled_run(
    hand_made: Callable[..., ReplayOptions], holds_first: str, tmp_path: Path
) -> None:
    rows = [TraceRow(n, n * S, 5, 3, session="a") for n in range(2)]
    options = hand_made(rows, sessions="closed", think_time=1.0, policy=holds_first, client_timeout=2.5)
    run = run_of(options)
    requests = run.requests.sort_values("source_row")
    assert requests["finish_reason"].tolist() == ["abort", "length"]
    assert requests["finished"].tolist() == [2.5, 3.53]
    assert run.manifest["client_timeout_s"] == 2.5
    assert resimulate(options.out, tmp_path / "again") == []


def test_who_was_given_up_counts_as_offered_and_missed(make_sessions: Callable[..., ReplayOptions]) -> None:
    summary = summarize(run_of(make_sessions("overloaded", client_timeout=15.0)))
    assert summary["offered"] == 200 == summary["completed"] + summary["aborted"]
    assert summary["aborted"] > 30


def test_a_run_without_sessions_says_nothing_of_turns(hand_made: Callable[..., ReplayOptions]) -> None:
    run = run_of(hand_made([TraceRow(n, n, 5, 3) for n in range(3)]))
    assert "turns" not in run.manifest and overtaking_warnings(run) == []
    assert "think_time_s" not in run.manifest and "client_timeout_s" not in run.manifest


def test_a_trace_prepared_and_exported_replays_alike(
    make_sessions: Callable[..., ReplayOptions], tmp_path: Path
) -> None:
    from traces.prepare import prepare

    options = make_sessions("slow", sessions="closed", requests=100, speedup=2.0)
    run = run_of(options)
    prepared = write_trace(prepare(options.trace, head=100, speedup=2.0), tmp_path / "prepared.parquet")
    again = run_of(replace(options, trace=prepared, requests=None, speedup=None, out=tmp_path / "exported"))
    assert again.requests.equals(run.requests) and again.steps.equals(run.steps)
