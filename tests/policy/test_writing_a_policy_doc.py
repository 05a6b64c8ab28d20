"""docs/writing-a-policy.md is true: its policy runs by `module:Class`, and its test of the policy passes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.summary import summarize
from experiments.options import ReplayOptions
from experiments.replay import replay
from tinyllm.engine.record.reader import read_run
from traces.export import write_trace
from traces.generate import generate

DOC = Path(__file__).parents[2] / "docs" / "writing-a-policy.md"


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", DOC.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder_with_mypolicy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder of a user who has saved the page's policy in it."""
    (tmp_path / "mypolicy.py").write_text(python_blocks()[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    sys.modules.pop("mypolicy", None)  # other tests have a module of this name
    yield tmp_path
    sys.modules.pop("mypolicy", None)


def test_the_policy_of_the_page_halves_the_mean_ttft_of_fcfs(folder_with_mypolicy: Path) -> None:
    trace = write_trace(generate("burstgpt-like", requests=1000, rate=44, seed=1), Path("trace.parquet"))
    mean_ttft = {}
    for policy in ("fcfs", "mypolicy:Mine"):
        out = Path("runs") / policy.replace(":", "-")
        options = ReplayOptions(
            trace, out, policy=policy, gpu="h100", model_shape="llama-3.1-8b", max_num_seqs=32
        )
        replay(options)
        mean_ttft[policy] = summarize(read_run(out))["ttft_mean"]
    assert mean_ttft["mypolicy:Mine"] < 0.5 * mean_ttft["fcfs"]


def test_the_test_of_the_page_passes(folder_with_mypolicy: Path) -> None:
    scope: dict[str, object] = {"__name__": "the_page"}
    exec(compile(python_blocks()[1], str(DOC), "exec"), scope)
    scope["test_every_request_ends_and_the_state_agrees_after_every_step"]()
