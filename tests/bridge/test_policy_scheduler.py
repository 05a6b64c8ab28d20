"""Our policies inside vLLM's scheduler, step by step beside our own scheduler."""

from __future__ import annotations

from typing import Any

import pytest

POLICIES = ("fcfs", "priority", "srpt", "vtc", "mlfq", "edf", "user_policy:TakesTurns")


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_inside_vllm_decides_as_it_does_in_our_engine(policy: str, inside: dict[str, Any]) -> None:
    found = inside["bridged"][policy]
    assert found["difference"] == "None"
    assert found["steps"] >= 600
    assert found["preemptions"] > 10
    assert found["hits"] > 20
