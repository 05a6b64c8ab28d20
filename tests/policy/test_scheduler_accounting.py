"""What is counted: recomputed tokens, and the tokens that a policy is told of, each of them once."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tinyllm.policy import Request
from tinyllm.policy.fcfs import FCFS


class Listening(FCFS):
    """FCFS that writes down what it hears."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []
        self.arrived: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()

    def on_arrival(self, view: Request, now: int) -> None:
        self.arrived[view.request_id] += 1

    def on_tokens(self, view: Request, prefill: int, decode: int, now: int) -> None:
        self.calls.append((view.request_id, prefill, decode))

    def on_finish(self, view: Request, now: int) -> None:
        self.finished[view.request_id] += 1

    def total(self, request_id: str) -> tuple[int, int]:
        mine = [call for call in self.calls if call[0] == request_id]
        return sum(call[1] for call in mine), sum(call[2] for call in mine)


def test_prompt_tokens_are_reported_when_scheduled_and_sampled_ones_when_their_step_ends(engine) -> None:
    policy = Listening()
    world = engine(policy, max_num_batched_tokens=64)
    world.add("a", 100, output=2)
    heard = []
    while (batch := world.schedule()) is not None:
        heard.append(list(policy.calls))
        world.finish(batch)
    heard.append(policy.calls)
    assert heard == [
        [("a", 64, 0)],
        [("a", 64, 0), ("a", 36, 0)],
        [("a", 64, 0), ("a", 36, 0), ("a", 0, 1)],
        [("a", 64, 0), ("a", 36, 0), ("a", 0, 1), ("a", 0, 1)],
    ]


def test_cached_tokens_are_never_reported(engine) -> None:
    policy = Listening()
    world = engine(policy, enable_prefix_caching=True)
    for name in ("first", "second"):
        world.add(name, 40, output=2, block_hashes=["x", "y"])
        world.run()
    assert policy.total("first") == (40, 2)
    assert policy.total("second") == (8, 2)


def test_recomputed_tokens_are_counted_and_never_reported_again(engine) -> None:
    policy = Listening()
    world = engine(policy, num_gpu_blocks=4)
    for name in "abc":
        world.add(name, 16, output=16)
    world.run()
    # c had computed its prompt and sampled one token when it lost its blocks: its return computes 17 tokens.
    assert [world.requests[name].num_recomputed_tokens for name in "abc"] == [0, 0, 16]
    assert [policy.total(name) for name in "abc"] == [(16, 16)] * 3


def test_what_a_prompt_preempted_in_its_middle_computes_beyond_once_is_recomputation(engine) -> None:
    policy = Listening()
    world = engine(policy, num_gpu_blocks=8, max_num_batched_tokens=33)
    world.add("a", 32, output=34)
    world.step()
    world.add("b", 96, output=2)
    steps = world.run()
    assert any(step.preempted == ["b"] for step in steps)
    computed = sum(count for step in steps for name, count in step.rows if name == "b")
    b = world.requests["b"]
    # 96 prompt tokens and the first of two output tokens, each once, and besides what was lost.
    assert computed == 97 + b.num_recomputed_tokens > 97
    assert policy.total("b") == (96, 2)


def test_a_return_that_finds_its_own_blocks_in_the_cache_recomputes_less(engine) -> None:
    counts = {}
    for caching in (False, True):
        world = engine(num_gpu_blocks=5, enable_prefix_caching=caching)
        world.add("a", 32, output=20, block_hashes=["a0", "a1"] if caching else [])
        world.add("b", 28, output=10, block_hashes=["b0"] if caching else [])
        steps = world.run()
        assert sum(len(step.preempted) for step in steps) == 1
        counts[caching] = world.requests["b"].num_recomputed_tokens
    # Of the two full blocks that b loses, a's growth evicts the one at the end of its prefix.
    assert counts == {False: 32, True: 16}


@given(
    shapes=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=8),
    blocks=st.integers(12, 20),
    budget=st.integers(8, 64),
    caching=st.booleans(),
)
def test_every_token_is_reported_once_and_the_rows_add_up_to_fresh_plus_recomputed(
    engine, shapes: list[tuple[int, int]], blocks: int, budget: int, caching: bool
) -> None:
    policy = Listening()
    world = engine(
        policy,
        block_size=8,
        num_gpu_blocks=blocks,
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
    )
    names = [f"r{i}" for i in range(len(shapes))]
    for name, (prompt, output) in zip(names, shapes, strict=True):
        hashes = [f"p{i}" for i in range(prompt // 8)] if caching else []
        world.add(name, prompt, output=output, block_hashes=hashes)
    computed: Counter[str] = Counter()
    for step in world.run():
        computed.update(dict(step.rows))
    for name, (prompt, output) in zip(names, shapes, strict=True):
        request = world.requests[name]
        prefill, decode = policy.total(name)
        assert decode == output
        assert prefill <= prompt if caching else prefill == prompt
        assert prefill >= 1
        if not caching:
            assert computed[name] == prompt + output - 1 + request.num_recomputed_tokens
        if request.num_preemptions == 0:
            assert prefill == prompt - request.num_cached_tokens
            assert request.num_recomputed_tokens == 0
            assert computed[name] == prefill + output - 1
    assert policy.arrived == policy.finished == Counter(names)


def test_the_end_is_told_once_also_to_aborted_requests_and_never_of_refused_ones(engine) -> None:
    policy = Listening()
    world = engine(policy, num_gpu_blocks=4, max_num_seqs=1)
    for name in ("a", "b"):
        world.add(name, 16, output=5)
    assert world.add("refused", 1_000) is not None
    world.step()
    world.abort("a")
    world.abort("b")
    assert policy.arrived == policy.finished == Counter("ab")
    assert world.scheduler.abort("a", world.now) is None
