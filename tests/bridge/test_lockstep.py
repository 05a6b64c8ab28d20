"""vLLM's Scheduler and ours, step by step. The long run is `make differential`."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("caching", ["with", "without"])
def test_the_two_schedulers_do_the_same_in_every_step_of_random_worlds(
    policy: str, caching: str, inside: dict[str, Any]
) -> None:
    found = inside["lockstep"][f"{policy}, {caching} prefix cache"]
    assert found["difference"] == "None"
    assert found["explained"] == 0
    assert found["steps"] >= 1_000
    assert found["preemptions"] > 10
    assert (found["hits"] > 20) == (caching == "with")


@pytest.mark.parametrize(
    ("rule", "aspects"),
    [
        ("cap_lone_prefill", {"scheduled tokens"}),
        ("register_blocks", {"scheduled tokens", "admissions and their cached tokens", "free blocks"}),
    ],
)
def test_without_a_rule_of_vllms_they_differ_and_the_world_that_shows_it_is_small(
    rule: str, aspects: set[str], inside: dict[str, Any]
) -> None:
    found = inside["without_a_rule"][rule]
    assert found["aspect"] in aspects
    assert found["requests"] <= 3


def test_a_block_that_vllm_caches_uncomputed_is_an_explained_difference(inside: dict[str, Any]) -> None:
    found = inside["taken_back"]
    assert found["difference"] is None
    step, aspect, ours, theirs = found["explained"]
    assert (step, aspect) == (3, "cached blocks")
    assert theirs == ours + 1
