"""Decisions that rest on a belief of a step's time: the belief itself, dynamic chunks, early rejection, queue cap."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.policy import FinishReason
from tinyllm.policy.estimate import StepEstimate

MS = 1_000_000
NUMBERS = st.integers(0, 10**6)


def test_an_estimate_is_exact_to_the_nanosecond() -> None:
    estimate = StepEstimate.parse("0.02:5e-5:1e-6:2e-10")
    assert estimate.step_ns(100, 3, 1_000) == 20_000_000 + 5_000_000 + 3_000 + 200


@given(st.integers(0, 10**9), NUMBERS, NUMBERS)
def test_the_most_tokens_of_a_time_are_the_last_that_fit_it(limit: int, seqs: int, context: int) -> None:
    estimate = StepEstimate.parse("0.002:3.3e-5:1e-6:2e-10")
    tokens = estimate.most_tokens(limit, seqs, context)
    if tokens >= 0:
        assert estimate.step_ns(tokens, seqs, context) <= limit < estimate.step_ns(tokens + 1, seqs, context)
    else:
        assert estimate.step_ns(0, seqs, context) > limit


def test_tokens_that_cost_nothing_are_limited_by_the_rest_alone() -> None:
    estimate = StepEstimate.parse("0.002:0")
    assert estimate.most_tokens(2 * MS, 1, 0) > 10**9
    assert estimate.most_tokens(2 * MS - 1, 1, 0) < 0


def chunk_beside_a_decode(engine: Any, delay_ms: int, **config: Any) -> int:
    """The first chunk of a long prompt in a step that begins `delay_ms` after a decoding request's first token."""
    stepper = engine("fcfs", block_size=2, step_estimate="0.001:0.001", tpot_slo=0.010, **config)
    stepper.add("a", 4, 5)
    stepper.step()
    stepper.now += delay_ms * MS
    stepper.add("b", 50, 1)
    rows = dict(stepper.step().rows)
    assert rows.pop("a") == 1
    return rows["b"]


@pytest.mark.parametrize(
    ("delay_ms", "tokens"),
    [
        (0, 8),  # 10 ms to the next token's deadline: 1 ms base, 1 ms for the decode, 8 tokens
        (5, 3),
        (7, 2),  # one token would fit: a block is the least
        (30, 2),  # late already
    ],
)
def test_a_chunk_ends_by_the_deadline_of_the_next_token(engine, delay_ms: int, tokens: int) -> None:
    assert chunk_beside_a_decode(engine, delay_ms) == tokens


def test_who_is_ahead_of_the_deadlines_lends_the_slack_to_prefill(engine) -> None:
    stepper = engine("fcfs", block_size=2, step_estimate="0.001:0.001", tpot_slo=0.010)
    stepper.add("a", 4, 9)
    for _ in range(4):  # a token a millisecond, ten are allowed
        stepper.step()
    stepper.add("b", 90, 1)
    # Four tokens, the first 3 ms ago: the next is due in 37 ms.
    assert dict(stepper.step().rows)["b"] == 35


def test_without_a_decode_a_prompt_gets_the_whole_budget(engine) -> None:
    stepper = engine("fcfs", step_estimate="1:1", tpot_slo=0.001, max_num_batched_tokens=64)
    stepper.add("a", 100, 1)
    assert stepper.step().rows == [("a", 64)]


def test_a_request_that_waits_past_its_deadline_is_dropped_and_one_that_runs_is_served(engine) -> None:
    stepper = engine("fcfs", early_rejection="expired", max_num_seqs=1, max_num_batched_tokens=2)
    stepper.add("a", 8, 1, ttft_deadline=1 * MS)
    stepper.add("b", 2, 1, ttft_deadline=3 * MS)
    stepper.add("c", 2, 1, ttft_deadline=4 * MS)
    stepper.add("d", 2, 1)
    steps = [step.rows for step in stepper.run()]
    # a's deadline passes while it runs. At 4 ms b is late, c is due just then and in time.
    assert steps == [[("a", 2)]] * 4 + [[("c", 2)], [("d", 2)]]
    assert stepper.requests["b"].finish_reason is FinishReason.REJECTED
    assert stepper.requests["a"].finish_reason is FinishReason.LENGTH


def test_a_request_is_refused_on_arrival_if_its_first_token_is_expected_late(engine) -> None:
    stepper = engine(
        "fcfs", early_rejection="predicted", step_estimate="0.010:0.001", max_num_batched_tokens=20
    )
    assert stepper.add("a", 30, 1) is None
    # 30 tokens of a and 15 of its own: steps of 20, 20 and 5 tokens, 30 + 30 + 15 ms.
    refused = stepper.add("b", 15, 1, ttft_deadline=74 * MS)
    assert refused == "its first token is expected 0.001 s after its deadline (early rejection)"
    assert stepper.add("c", 15, 1, ttft_deadline=75 * MS) is None


def test_decoding_requests_take_their_share_of_the_expected_steps(engine) -> None:
    stepper = engine(
        "fcfs", early_rejection="predicted", step_estimate="0.010:0.001", max_num_batched_tokens=20
    )
    stepper.add("a", 10, 9)
    stepper.step()
    # 20 tokens need two steps beside a's decode: 19 + 1, then 1 + 1.
    due = stepper.now + 42 * MS
    assert stepper.add("b", 20, 1, ttft_deadline=due - 1) is not None
    assert stepper.add("c", 20, 1, ttft_deadline=due) is None


def test_who_is_about_to_be_dropped_makes_nobody_late(engine) -> None:
    stepper = engine(
        "fcfs",
        early_rejection="predicted",
        step_estimate="0.010:0.001",
        max_num_batched_tokens=20,
        max_num_seqs=1,
    )
    stepper.add("a", 10, 9)
    stepper.step()
    assert stepper.add("b", 20, 1, ttft_deadline=stepper.now + 42 * MS) is None
    assert stepper.add("c", 20, 1, ttft_deadline=stepper.now + 43 * MS) is not None
    stepper.now += 43 * MS
    assert stepper.add("d", 20, 1, ttft_deadline=stepper.now + 42 * MS) is None
    stepper.step()
    assert stepper.requests["b"].finish_reason is FinishReason.REJECTED


def test_a_full_queue_refuses_and_goes_on_when_one_has_left_it(engine) -> None:
    stepper = engine("fcfs", max_queued_requests=2, max_num_seqs=1)
    assert [stepper.add(name, 2, 1) for name in "ab"] == [None, None]
    assert stepper.add("c", 2, 1) == "2 requests wait already, max_queued_requests is reached"
    stepper.step()
    assert stepper.add("d", 2, 1) is None


def test_who_is_about_to_be_dropped_fills_no_queue(engine) -> None:
    stepper = engine("fcfs", early_rejection="expired", max_queued_requests=1, max_num_seqs=1)
    stepper.add("a", 2, 5)
    stepper.step()
    assert stepper.add("b", 2, 1, ttft_deadline=stepper.now) is None
    assert stepper.add("c", 2, 1) is not None
    stepper.now += 1
    assert stepper.add("d", 2, 1) is None
    stepper.run()
    assert stepper.requests["b"].finish_reason is FinishReason.REJECTED
    assert stepper.requests["d"].finish_reason is FinishReason.LENGTH
