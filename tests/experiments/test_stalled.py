"""Runs whose policy holds requests for ever: they end, and say who waits for what."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.options import ReplayOptions
from experiments.replay import replay
from tinyllm.engine.record.reader import read_run
from tinyllm.errors import IncompleteRunError

HOLDERS = '''
from tinyllm.policy.fcfs import FCFS


class HoldsOdd(FCFS):
    """Never starts every other request."""

    stable_waiting = False

    def key(self, view, now):
        return None if view.index % 2 else super().key(view, now)


class HoldsAfterTheFirstToken(FCFS):
    """Never lets a request go on after its first token."""

    def key(self, view, now):
        return None if view.num_output_tokens else super().key(view, now)

    def decode_horizon(self, running, waiting, now):
        return 1


class FailsLater(FCFS):
    """Breaks when the first request has three tokens."""

    def key(self, view, now):
        return (1 // (3 - view.num_output_tokens),)

    def decode_horizon(self, running, waiting, now):
        return 1
'''


@pytest.fixture(autouse=True)
def holders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policies above as the user's module `holders`."""
    (tmp_path / "holders.py").write_text(HOLDERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "holders", raising=False)


def test_requests_that_are_never_admitted_are_named_and_the_others_are_served(
    make_options: Callable[..., ReplayOptions], tmp_path: Path
) -> None:
    with pytest.raises(IncompleteRunError) as caught:
        replay(make_options(6, policy="holders:HoldsOdd"))
    message = str(caught.value)
    assert caught.value.exit_code == 1 and "stalled" in message
    for name in ("r1", "r3", "r5"):
        assert f"{name} held by the policy" in message
    assert "r0" not in message
    run = read_run(tmp_path / "run")
    assert run.status == "stalled"
    reasons = run.requests.sort_values("source_row")["finish_reason"].tolist()
    assert reasons == ["length", "unfinished"] * 3


def test_requests_that_are_held_in_mid_decode_keep_their_blocks_and_make_others_wait(
    make_options: Callable[..., ReplayOptions], tmp_path: Path
) -> None:
    options = make_options(8, policy="holders:HoldsAfterTheFirstToken", max_num_seqs=3)
    with pytest.raises(IncompleteRunError) as caught:
        replay(options)
    message = str(caught.value)
    assert message.count("held by the policy") >= 3
    assert "waits for one of 3 seats" in message
    run = read_run(tmp_path / "run")
    held = run.requests[run.requests["output_tokens"] == 1]
    assert len(held) >= 3 and run.steps["blocks_used"].iloc[-1] > 0


def test_a_long_list_of_stalled_requests_is_cut(make_options: Callable[..., ReplayOptions]) -> None:
    with pytest.raises(IncompleteRunError, match="and 40 more"):
        replay(make_options(100, policy="holders:HoldsOdd"))


def test_a_policy_that_raises_keeps_its_traceback_and_leaves_a_log_that_says_so(
    make_options: Callable[..., ReplayOptions], tmp_path: Path
) -> None:
    with pytest.raises(ZeroDivisionError):
        replay(make_options(6, policy="holders:FailsLater"))
    run = read_run(tmp_path / "run")
    assert run.status == "interrupted" and "ZeroDivisionError" in run.manifest["error"]
    assert len(run.steps) > 0
    assert len(run.requests) == 6
