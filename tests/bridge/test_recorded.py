"""Logs that a scheduler inside vLLM wrote, made again by ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.resim import resimulate
from tinyllm.engine.record.reader import read_run


@pytest.mark.parametrize("name", ["uncached", "cached"])
def test_our_scheduler_makes_every_decision_of_a_vllm_run_again(
    name: str, inside: dict[str, Any], tmp_path: Path
) -> None:
    run = read_run(Path(inside["recorded"][name]))
    assert run.manifest["mode"] == "vllm"
    assert (run.requests["finish_reason"] == "length").all()
    assert run.requests["preemptions"].sum() > 0
    assert (run.requests["cached_prompt_tokens"].sum() > 0) == (name == "cached")
    assert set(run.requests["tenant"]) == {"a", "b"}
    assert resimulate(run.path, tmp_path / "again") == []


def test_what_vllm_cannot_serve_is_refused_in_one_line_that_says_so(inside: dict[str, Any]) -> None:
    said = inside["refused"]
    assert said["vllm_policy"].startswith("tinyllm.bridge: --scheduling-policy priority")
    assert said["setting"] == "additional-config: tinyllm.polcy: unknown; choose policy, policy_args or log"
    assert said["policy"].startswith("--policy first: unknown; choose fcfs")
    assert said["overtake"].startswith("tinyllm.bridge: Overtakes overtakes")
