"""Conversations on a tiny random checkpoint: closed turns, their history in real tokens, clients that give up."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.options import ReplayOptions
from experiments.progress import Report
from experiments.replay import replay
from experiments.resim import resimulate
from tinyllm.engine.clients import Clients
from tinyllm.engine.record.reader import Run, read_run
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.engine.sessions import Turn
from tinyllm.engine.submitter import Submitter
from tinyllm.errors import IncompleteRunError
from traces.export import write_trace
from traces.schema import Provenance, Trace, TraceRow

MS = 1_000_000
BLOCK = 4
TURNS, CHATS = 3, 4


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def chats(tmp_path: Path) -> Callable[..., Path]:
    """Four chats of three turns each, every prompt the whole history and 5 tokens; `ids` say so, too.

    With ids, the chats begin with the same 8 tokens, and the last turn of each chat forks from its first.
    """

    def make(ids: bool) -> Path:
        rows = []
        for chat in range(CHATS):
            prompt, lengths = 9 + chat, []
            for turn in range(TURNS):
                fork = ids and turn == TURNS - 1
                prompt = lengths[0][0] + lengths[0][1] + 6 if fork else prompt
                output = 5 + (chat + turn) % 4
                lengths.append((prompt, output))
                blocks = range(-(-prompt // BLOCK))
                names = [b if b < 2 else 1000 * chat + 100 * (fork and b >= 4) + b for b in blocks]
                at = (chat + turn * CHATS) * MS
                rows.append(
                    TraceRow(
                        0, at, prompt, output, session=f"c{chat}", prefix_ids=tuple(names) if ids else None
                    )
                )
                prompt += output + 5
        rows.sort(key=lambda row: row.arrival_ns)
        rows = [row._replace(source_row=n) for n, row in enumerate(rows)]
        provenance = Provenance("made by hand", "table", rows_in=len(rows), rows_out=len(rows))
        return write_trace(
            Trace(iter(rows), provenance, BLOCK if ids else None), tmp_path / "chats.parquet", force=True
        )

    return make


@pytest.fixture
def make_options(chats: Callable[..., Path], tiny_llama: Any, tmp_path: Path) -> Callable[..., ReplayOptions]:
    """`make_options(ids=True)`: closed sessions on the real model; `mode="sim"` simulates the same.

    One seat: who is computed before whom does not hang on the speed of the machine.
    """

    def make(out: str = "real", ids: bool = False, **options: Any) -> ReplayOptions:
        defaults = {
            "mode": "real",
            "model": tiny_llama.directory,
            "num_gpu_blocks": 400,
            "block_size": BLOCK,
            "max_lag_share": float("inf"),
            "max_num_seqs": 1,
            "enable_prefix_caching": True,
            "sessions": "closed",
            "think_time": 0.003,
            "cost_model": "yardstick",
        }
        return ReplayOptions(trace=chats(ids), out=tmp_path / out, force=True, **{**defaults, **options})

    return make


def run_of(options: ReplayOptions) -> Run:
    replay(options)
    return read_run(options.out)


def cached(run: Run) -> dict[str, int]:
    return dict(zip(run.requests["request_id"], run.requests["cached_prompt_tokens"], strict=True))


# ── closed sessions ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ids", [False, True])
def test_each_turn_hits_as_many_tokens_as_in_simulation(
    make_options: Callable[..., ReplayOptions], tmp_path: Path, ids: bool
) -> None:
    options = make_options(ids=ids)
    run, simulated = run_of(options), run_of(make_options("sim", ids=ids, mode="sim"))
    assert run.requests["finish_reason"].eq("length").all() and len(run.requests) == CHATS * TURNS
    assert cached(run) == cached(simulated)
    hits = [cached(run)[f"r{row}"] for row in range(CHATS, 2 * CHATS)]
    first = run.workload[:CHATS]
    # All full blocks of the history; its last token is sampled and not computed.
    history = (first["prompt_tokens"] + first["target_output_tokens"] - 1) // BLOCK * BLOCK
    assert hits == history.tolist()
    for hashes in ("recorded", "prefix-ids"):
        assert resimulate(options.out, tmp_path / "again", hashes=hashes, force=True) == []  # type: ignore[arg-type]


def test_a_real_turn_arrives_exactly_at_the_end_of_its_predecessor_and_the_think_time(
    make_options: Callable[..., ReplayOptions],
) -> None:
    run = run_of(make_options(max_num_seqs=3))
    requests = run.requests.set_index("request_id")
    for row in range(CHATS, CHATS * TURNS):
        turn, before = requests.loc[f"r{row}"], requests.loc[f"r{row - CHATS}"]
        assert round((turn["arrival"] - before["finished"]) * 1e9) == 3 * MS
        assert turn["submitted"] >= turn["arrival"]
    assert run.manifest["valid"] and run.manifest["turns"] == {
        "later": CHATS * (TURNS - 1),
        "overtaking": 0,
        "guessed_thinks": 0,
    }


def test_an_open_turn_that_overtakes_its_predecessor_holds_its_prompt_only_in_both_modes(
    make_options: Callable[..., ReplayOptions], tmp_path: Path
) -> None:
    # All turns come within 12 ms, and each answer takes at least five steps.
    options = make_options(sessions="open", think_time=None, eos="ignore")
    run = run_of(options)
    assert run.manifest["turns"]["overtaking"] > 0
    assert resimulate(options.out, tmp_path / "again", hashes="prefix-ids") == []


def test_a_real_client_gives_up_and_its_next_turn_comes_all_the_same(
    make_options: Callable[..., ReplayOptions], tmp_path: Path
) -> None:
    options = make_options(client_timeout=0.004)
    run = run_of(options)
    reasons = run.requests["finish_reason"].value_counts()
    assert reasons["abort"] > 0 and len(run.requests) == CHATS * TURNS == reasons.sum()
    given_up = run.requests[run.requests["finish_reason"] == "abort"]
    assert (given_up["finished"] - given_up["arrival"] >= 0.004).all()
    assert resimulate(options.out, tmp_path / "again") == []


@contextmanager
def _ctrl_c(total: int) -> Iterator[Report]:
    def report(now: int, done: int) -> None:
        if done:
            signal.raise_signal(signal.SIGINT)

    yield report


def test_ctrl_c_leaves_turns_that_never_came_as_unfinished_requests(
    make_options: Callable[..., ReplayOptions],
) -> None:
    options = make_options(think_time=3600.0)
    with pytest.raises(IncompleteRunError, match="interrupted"):
        replay(options, _ctrl_c)
    run = read_run(options.out)
    assert run.status == "interrupted" and len(run.requests) == CHATS * TURNS
    never = run.requests[run.requests["submitted"].isna()]
    assert len(never) >= CHATS * (TURNS - 1) and never["finish_reason"].eq("unfinished").all()


# ── the submitter ────────────────────────────────────────────────────────────────────────────────────


def record(number: int, arrival_ns: int) -> ArrivalRecord:
    return ArrivalRecord(f"r{number}", number, arrival_ns, 1, 1, 1)


def test_a_sleeping_submitter_wakes_for_what_becomes_due_earlier() -> None:
    start = time.monotonic_ns()
    clients = Clients([record(0, 0), record(1, 0), record(2, 3600 * 1000 * MS)], {"r1": Turn("r0", None, MS)})
    submitter = Submitter(clients, lambda: time.monotonic_ns() - start)
    submitter.start()
    names: list[str] = []
    while len(names) < 2:
        assert submitter.wait()
        for due, handed_ns in submitter.take(time.monotonic_ns() - start):
            assert handed_ns >= due.due_ns
            names.append(due.record.request_id)
            if due.record.request_id == "r0":
                submitter.end("r0", handed_ns)
    assert names == ["r0", "r1"] and submitter.wait(), "r2 is to come in an hour"
    submitter.stop()
    assert not any(thread.name == "submitter" for thread in threading.enumerate())


def test_a_submitter_that_waits_for_an_end_only_says_that_nothing_is_to_come() -> None:
    clients = Clients([record(0, 0), record(1, 0)], {"r1": Turn("r0", None, 0)})
    submitter = Submitter(clients, lambda: 10)
    submitter.start()
    while not submitter.take(10):
        assert submitter.wait()
    assert not submitter.wait()
    submitter.end("r0", 5)
    while not (taken := submitter.take(10)):
        assert submitter.wait()
    assert taken[0][0].record.arrival_ns == 5
    submitter.stop()
