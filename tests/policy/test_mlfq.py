"""The multi-level feedback queue: where requests join, when they drop, and when they come back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyllm.errors import InputError
from tinyllm.policy import Request, make_policy
from tinyllm.policy.mlfq import MLFQ, linear_estimator

MS = 1_000_000
RANDOM = st.randoms(use_true_random=False)


def mlfq(**changes: Any) -> MLFQ:
    """Steps of 1 ms and 1 ms a token; quanta of 4, 8 and 16 ms; promotion after 100 ms."""
    values = {"num_levels": 3, "quantum": 0.004, "promote_after": 0.1, "base": 0.001, "per_token": 0.001}
    return MLFQ(**(values | changes))


def arrived(policy: MLFQ, name: str, prompt: int, now: int = 0) -> Request:
    view = Request(name, prompt, 100, now)
    policy.on_arrival(view, now)
    return view


def sample(policy: MLFQ, view: Request, now: int) -> None:
    view.num_output_tokens += 1
    policy.on_tokens(view, 0, 1, now)


@pytest.mark.parametrize(("prompt", "level"), [(1, 0), (3, 0), (4, 1), (7, 1), (8, 2), (15, 2), (500, 2)])
def test_a_request_joins_the_first_level_whose_quantum_covers_its_first_step(prompt: int, level: int) -> None:
    policy = mlfq()
    view = arrived(policy, "r", prompt)
    assert policy.level("r") == level
    assert policy.key(view, 0) == (level,)


@given(chunks=st.lists(st.integers(1, 6), min_size=1, max_size=8))
def test_however_a_prompt_is_cut_its_first_step_does_not_use_up_its_quantum(chunks: list[int]) -> None:
    policy = mlfq()
    view = arrived(policy, "r", sum(chunks))
    joined = policy.level("r")
    for chunk in chunks:
        policy.on_tokens(view, chunk, 0, 0)
    sample(policy, view, 0)
    assert policy.level("r") == joined


def test_service_over_the_quantum_drops_a_level_with_a_quantum_anew_and_the_last_has_no_end() -> None:
    policy = mlfq()
    view = arrived(policy, "r", 3)
    policy.on_tokens(view, 3, 0, 0)  # 4 ms: all of it, but not more
    levels = []
    for _ in range(60):
        sample(policy, view, 0)
        levels.append(policy.level("r"))
    # A token is 2 ms, the first is in the 4 ms of the prompt; 8 ms are four tokens, the fifth is over.
    assert levels == [0] + [1] * 5 + [2] * 54


def test_one_that_is_not_served_for_long_goes_first_and_starts_anew_once_it_is() -> None:
    policy = mlfq()
    view = arrived(policy, "r", 500)
    policy.on_tokens(view, 500, 0, 10 * MS)
    assert policy.key(view, 109 * MS) == (2,)
    assert policy.key(view, 110 * MS) == (0,)
    sample(policy, view, 111 * MS)
    sample(policy, view, 112 * MS)
    assert policy.key(view, 112 * MS) == (0,)
    sample(policy, view, 113 * MS)
    sample(policy, view, 114 * MS)
    assert policy.key(view, 114 * MS) == (1,)


def test_a_short_request_passes_a_long_one_that_has_used_up_its_quanta(engine: Any) -> None:
    world = engine(mlfq(), max_num_seqs=1)
    world.add("long", 2, 40)
    for _ in range(10):
        world.step()
    world.add("short", 2, 2)
    step = world.step()
    assert (step.preempted, step.admitted) == (["long"], ["short"])
    assert [name for step in world.run() for name in step.finished] == ["short", "long"]


def test_without_preemption_the_long_one_keeps_its_seat(engine: Any) -> None:
    world = engine(mlfq(preemptive=False), max_num_seqs=1)
    world.add("long", 2, 40)
    for _ in range(10):
        world.step()
    world.add("short", 2, 2)
    assert [name for step in world.run() for name in step.finished] == ["long", "short"]


def test_a_long_request_in_a_stream_of_short_ones_is_promoted_and_ends(engine: Any) -> None:
    def starved(promote_after: float) -> bool:
        world = engine(mlfq(promote_after=promote_after), max_num_seqs=1)
        world.add("first", 2, 1)
        world.add("long", 64, 3)
        for i in range(300):
            world.add(f"s{i}", 2, 1)
            world.step()
        return not world.requests["long"].is_finished

    assert starved(promote_after=10.0)
    assert not starved(promote_after=0.05)


def test_an_estimator_is_injected_and_the_default_is_linear() -> None:
    assert linear_estimator(0.01, 0.0001)(50) == 15 * MS
    policy = MLFQ(num_levels=4, quantum=0.004, estimator=lambda tokens: 30 * MS)
    arrived(policy, "r", 1)
    assert policy.level("r") == 3


@settings(max_examples=80)
@given(rng=RANDOM, preemptive=st.booleans(), promote_after=st.sampled_from([0.001, 0.01, 10.0]))
def test_in_any_world_with_any_promotion_every_request_ends_and_is_forgotten(
    world: Any, rng: Any, preemptive: bool, promote_after: float
) -> None:
    policy = mlfq(preemptive=preemptive, promote_after=promote_after)
    engine = world.draw(rng, may_preempt=preemptive).run(policy)
    engine.run()
    with pytest.raises(KeyError):
        policy.level("r0")


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ({"num_levels": 0}, "num_levels 0"),
        ({"num_levels": 31}, "num_levels 31"),
        ({"quantum": -1}, "quantum -1"),
        ({"promote_after": float("inf")}, "promote_after inf"),
        ({"base": 0}, "base 0"),
        ({"estimator": "mine"}, "from Python only"),
    ],
)
def test_an_argument_out_of_range_is_refused(args: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make_policy("mlfq", args)
