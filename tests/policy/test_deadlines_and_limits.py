"""EDF and the tenants' rate limit: their keys, what they hold, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyllm.errors import InputError
from tinyllm.policy import Request, RequestState, make_policy
from tinyllm.policy.edf import EDF
from tinyllm.policy.rate_limit import RateLimit

MS, S = 1_000_000, 1_000_000_000
RANDOM = st.randoms(use_true_random=False)


def due(ttft: int | None = None, e2e: int | None = None, output: int = 0) -> Request:
    request = Request("r", 10, 100, ttft_deadline=ttft, e2e_deadline=e2e)
    request.num_output_tokens = output
    return request


def test_edf_goes_by_the_deadline_that_it_is_told_to_go_by() -> None:
    view = due(ttft=7 * S, e2e=30 * S, output=3)
    assert EDF("ttft").key(view, 0) == (0, 7 * S)
    assert EDF("e2e").key(view, 0) == (0, 30 * S)
    assert EDF("token", tpot=0.25).key(view, 0) == (0, 7 * S + 3 * S // 4)


@pytest.mark.parametrize("deadline", ["ttft", "e2e", "token"])
def test_edf_puts_what_is_never_due_behind_what_is_and_before_what_is_late_if_told_so(deadline: str) -> None:
    never, in_time, late = due(), due(9 * S, 9 * S), due(4 * S, 4 * S)
    keep, last = EDF(deadline), EDF(deadline, expired="last")
    assert sorted([never, in_time, late], key=lambda view: keep.key(view, 5 * S)) == [late, in_time, never]
    assert sorted([never, in_time, late], key=lambda view: last.key(view, 5 * S)) == [in_time, never, late]


def test_edf_calls_nobody_late_who_is_due_just_now_or_streams() -> None:
    policy = EDF(expired="last")
    assert policy.key(due(ttft=5), 5) == (0, 5)
    assert policy.key(due(ttft=5), 6) == (2, 5)
    assert policy.key(due(ttft=5, output=1), 6) == (0, 5)
    assert EDF("e2e", expired="last").key(due(e2e=5, output=1), 6) == (2, 5)


def test_edf_promises_a_stable_queue_only_where_time_does_not_enter() -> None:
    assert EDF().stable_waiting
    assert not EDF(expired="last").stable_waiting
    assert EDF("token").decode_horizon([], 0, 0) == 1


@settings(max_examples=80)
@given(
    rng=RANDOM,
    deadline=st.sampled_from(["ttft", "e2e", "token"]),
    expired=st.sampled_from(["keep", "last"]),
    preemptive=st.booleans(),
)
def test_edf_of_every_kind_decides_the_same_when_asked_in_every_step(
    world: Any, rng: Any, deadline: str, expired: str, preemptive: bool
) -> None:
    args = {"deadline": deadline, "tpot": 0.002, "expired": expired, "preemptive": preemptive}
    lazy, asked = EDF(**args), EDF(**args)
    asked.stable_waiting = False
    asked.decode_horizon = lambda running, waiting, now: 1  # type: ignore[method-assign]
    drawn = world.draw(rng, may_preempt=preemptive)
    engine = drawn.run(lazy)
    assert engine.steps == drawn.run(asked).steps
    engine.run()


def served(policy: RateLimit, tenant: str, tokens: int, now: int, **fields: Any) -> Request:
    view = Request(f"{tenant}{now}", 10, 100, tenant=tenant, **fields)
    policy.on_arrival(view, now)
    policy.on_tokens(view, tokens, 0, now)
    return view


def test_a_bucket_is_filled_at_its_rate_up_to_its_size_and_goes_into_debt() -> None:
    policy = RateLimit(rate=100, burst=50)
    served(policy, "x", 80, now=0)
    assert policy.tokens_left("x", 0) == -30
    assert policy.tokens_left("x", 100 * MS) == -20
    assert policy.tokens_left("x", 10 * S) == 50
    assert policy.tokens_left("y", 0) == 50


def test_a_tenant_in_debt_waits_while_something_runs_and_until_its_bucket_fills() -> None:
    policy = RateLimit(rate=100, burst=50)
    running = served(policy, "x", 80, now=0)
    waiting = Request("w", 10, 100, tenant="x")
    assert policy.key(waiting, 0) == (1,)
    running.state = RequestState.RUNNING
    assert policy.key(waiting, 0) is None
    assert policy.key(running, 0) == (0,)
    assert policy.key(waiting, 300 * MS) is None
    assert policy.key(waiting, 301 * MS) == (0,)
    assert policy.key(Request("o", 10, 100, tenant="y"), 0) == (0,)


@settings(max_examples=80)
@given(rng=RANDOM, rate=st.sampled_from([1, 200, 2_000]), burst=st.integers(1, 30))
def test_a_tight_limit_stalls_nothing_and_every_request_ends(
    world: Any, rng: Any, rate: int, burst: int
) -> None:
    world.draw(rng, may_preempt=False).run(RateLimit(rate, burst)).run()


def test_a_limit_keeps_a_flood_of_one_tenant_out_of_the_way_of_another(engine: Any) -> None:
    def first_token_of_the_other(policy: Any) -> int:
        world = engine(policy, max_num_seqs=2)
        for i in range(20):
            world.add(f"x{i}", 50, 10, tenant="x")
        world.step()
        world.add("y", 50, 10, tenant="y")
        return next(n for n, step in enumerate(world.run()) if "y" in step.admitted)

    assert first_token_of_the_other(RateLimit(rate=1, burst=60)) < first_token_of_the_other("fcfs")


@pytest.mark.parametrize(
    ("name", "args", "complaint"),
    [
        ("edf", {"deadline": "soon"}, "edf: deadline soon: choose one of ttft, e2e, token"),
        ("edf", {"deadline": 5}, "edf: deadline 5"),
        ("edf", {"expired": "drop"}, "edf: expired drop: choose one of keep, last"),
        ("edf", {"tpot": 0}, "edf: tpot 0: give seconds"),
        ("edf", {"tpot": float("nan")}, "edf: tpot nan"),
        ("rate-limit", {"rate": 0}, "rate-limit: rate 0"),
        ("rate-limit", {"burst": -1}, "rate-limit: burst -1"),
        ("aged-priority", {"aging": -2.5}, "aged-priority: aging -2.5"),
        ("sjf", {"decode_weight": 0}, "sjf: decode_weight 0"),
        ("ljf", {"decode_weight": 0}, "ljf: decode_weight 0"),
    ],
)
def test_an_argument_out_of_range_is_refused_by_name(name: str, args: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError) as error:
        make_policy(name, args)
    assert complaint in str(error.value)
