"""The keys of the built-in policies and the orders that follow from them, worked by hand."""

from __future__ import annotations

import pytest

from tinyllm.errors import InputError
from tinyllm.policy import Request, RequestState, make_policy
from tinyllm.policy.fcfs import FCFS
from tinyllm.policy.srpt import SRPT


def request(prompt: int = 10, max_tokens: int = 100, **fields) -> Request:
    return Request("r", prompt, max_tokens, **fields)


def test_fcfs_runs_by_admission_and_queues_the_last_preempted_first() -> None:
    def fake(state: RequestState, admitted: int = -1, preempted: int = -1, index: int = 0) -> Request:
        made = request()
        made.state, made.admitted_index, made.preempted_index, made.index = state, admitted, preempted, index
        return made

    key = FCFS().key
    running = [key(fake(RequestState.RUNNING, admitted=i), 0) for i in range(3)]
    assert running == sorted(running)
    queue = [
        fake(RequestState.PREEMPTED, preempted=7, index=3),
        fake(RequestState.PREEMPTED, preempted=6, index=4),
        fake(RequestState.WAITING, index=1),
        fake(RequestState.WAITING, index=2),
    ]
    keys = [key(waiting, 0) for waiting in queue]
    assert keys == sorted(keys)


def test_priority_orders_by_the_number_and_ties_by_arrival(engine) -> None:
    world = engine("priority", max_num_seqs=1)
    for name, priority in (("b", 2), ("a", 1), ("c", 2), ("z", 0)):
        world.add(name, 16, priority=priority)
    assert [step.admitted[0] for step in world.run()] == ["z", "a", "b", "c"]


def test_srpt_s_key_is_what_is_left_to_compute_and_to_sample() -> None:
    policy = SRPT()
    view = request(prompt=30, predicted_output_tokens=20)
    keys = [policy.key(view, 0)]
    view.num_computed_tokens = 16
    keys.append(policy.key(view, 0))  # half of the prompt is done
    view.num_computed_tokens, view.num_output_tokens, view.num_tokens = 30, 1, 31
    keys.append(policy.key(view, 0))  # the first token is sampled, and not computed yet
    view.num_computed_tokens, view.num_output_tokens, view.num_tokens = 38, 9, 39
    keys.append(policy.key(view, 0))
    view.num_computed_tokens = 0
    keys.append(policy.key(view, 0))  # preempted: everything is to be computed again
    assert keys == [(50,), (34,), (20,), (12,), (50,)]


def test_srpt_counts_one_token_left_for_a_request_that_outlives_its_prediction() -> None:
    view = request(prompt=4, predicted_output_tokens=3)
    view.num_output_tokens, view.num_tokens, view.num_computed_tokens = 9, 13, 12
    assert SRPT().key(view, 0) == (2,)


def test_srpt_without_a_prediction_goes_by_the_declared_length() -> None:
    assert SRPT().key(request(prompt=10, max_tokens=100), 0) == (110,)
    assert SRPT(decode_weight=3).key(request(prompt=10, max_tokens=100), 0) == (310,)


def test_srpt_serves_the_shortest_first_and_lets_a_shorter_newcomer_take_the_seat(engine) -> None:
    world = engine("srpt", max_num_seqs=1)
    for name, output in (("long", 9), ("short", 2), ("middle", 5)):
        world.add(name, 4, output=output, predicted_output_tokens=output)
    assert world.step().admitted == ["short"]
    assert world.step().finished == ["short"]
    assert world.step().admitted == ["middle"]
    world.add("tiny", 1, output=1, predicted_output_tokens=1)
    step = world.step()
    assert (step.preempted, step.admitted, step.finished) == (["middle"], ["tiny"], ["tiny"])
    assert [name for step in world.run() for name in step.admitted] == ["middle", "long"]


def test_srpt_finishes_a_batch_of_known_lengths_in_order_of_length(engine) -> None:
    world = engine("srpt", max_num_seqs=2)
    for i, output in enumerate((30, 5, 20, 10)):
        world.add(f"r{i}", 8, output=output, predicted_output_tokens=output)
    assert [name for step in world.run() for name in step.finished] == ["r1", "r3", "r2", "r0"]


def test_srpt_s_horizon_ends_when_a_prediction_runs_out_or_a_prompt_is_still_computed() -> None:
    def decoding(left: int) -> Request:
        view = request(prompt=4, predicted_output_tokens=left + 1)
        view.num_output_tokens, view.num_tokens, view.num_computed_tokens = 1, 5, 4
        view.is_decoding = True
        return view

    policy = SRPT()
    assert policy.decode_horizon([decoding(9), decoding(4)], 0, 0) == 4
    assert policy.decode_horizon([decoding(9), decoding(0)], 0, 0) == 1
    assert policy.decode_horizon([decoding(9), request()], 0, 0) == 1
    assert policy.decode_horizon([], 5, 0) == 1


def test_sjf_s_key_is_the_whole_work_and_ljf_turns_it_round_whatever_the_progress() -> None:
    view = request(prompt=30, predicted_output_tokens=20)
    keys = {make_policy("sjf").key(view, 0), make_policy("sjf", {"decode_weight": 1}).key(view, 5)}
    view.num_computed_tokens, view.num_output_tokens, view.num_tokens = 38, 9, 39
    assert keys | {make_policy("sjf").key(view, 9)} == {(50,)}
    assert make_policy("ljf").key(view, 0) == (-50,)
    assert make_policy("sjf", {"decode_weight": 3}).key(view, 0) == (90,)
    assert make_policy("sjf").key(request(prompt=10, max_tokens=100), 0) == (110,)


def test_sjf_lets_run_what_runs_and_ljf_serves_the_longest_first(engine) -> None:
    for policy, order in (("sjf", ["middle", "tiny", "long"]), ("ljf", ["long", "middle", "tiny"])):
        world = engine(policy, max_num_seqs=1)
        for name, output in (("long", 9), ("middle", 5)):
            world.add(name, 4, output=output, predicted_output_tokens=output)
        world.step()
        world.add("tiny", 1, output=1, predicted_output_tokens=1)
        assert [name for step in world.run() for name in step.finished] == order


def test_aged_priority_lets_a_level_be_outweighed_by_the_wait_that_it_is_worth() -> None:
    policy = make_policy("aged-priority", {"aging": 2.5})
    late = request(arrival=10_000_000_000)
    early = [request(arrival=10_000_000_000 - wait, priority=1) for wait in (2_499_999_999, 2_500_000_001)]
    assert policy.key(early[0], 0) > policy.key(late, 0) > policy.key(early[1], 0)


def test_aged_priority_serves_a_low_request_in_a_stream_of_urgent_ones_that_strict_priority_starves(
    engine,
) -> None:
    def ends(policy) -> bool:
        world = engine(policy, max_num_seqs=1)
        world.add("low", 4, 2, priority=1)
        for i in range(60):
            world.add(f"u{i}", 4, 1)
            world.step()
        return world.requests["low"].is_finished

    assert ends(make_policy("aged-priority", {"aging": 0.02}))
    assert not ends(make_policy("priority"))


@pytest.mark.parametrize(
    ("name", "args", "complaint"),
    [("srpt", {"decode_weight": 0}, "decode_weight 0"), ("vtc", {"output_weight": -1}, "output_weight -1")],
)
def test_a_weight_out_of_range_is_refused(name: str, args: dict[str, int], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make_policy(name, args)
