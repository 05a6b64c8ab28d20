from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.errors import InputError
from tinyllm.models.base import DecoderModel
from tinyllm.policy.request import Request
from tinyllm.runner.attention import BACKENDS
from tinyllm.runner.model_runner import ModelRunner

GREEDY = SamplingParams(temperature=0)
BLOCK_SIZES = [1, 3, 4, 16]


class WholeForward:
    """Generates a request alone, the whole sequence in one dense forward pass for every token."""

    def __init__(self, model: DecoderModel, dense_attention: Callable[..., Tensor]) -> None:
        self.model, self.dense_attention = model, dense_attention

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> Tensor:
        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self.dense_attention(q, k, v, self.model.config.sliding_window_of(layer)).to(q.dtype)

        device = next(self.model.parameters()).device
        ids = torch.tensor(token_ids, device=device)
        return self.model.compute_logits(self.model(ids, torch.arange(len(ids), device=device), attend))

    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens


class RandomSchedule:
    """Plays the scheduler by chance: chunks, mixes, preemptions, and blocks of a shared prefix by their ids."""

    def __init__(self, runner: ModelRunner, scheduled: Callable, seed: int) -> None:
        self.runner, self.scheduled = runner, scheduled
        self.random = random.Random(seed)
        self.block_size = runner.kv_cache.block_size
        self.references = [0] * runner.kv_cache.num_blocks
        self.tokens: dict[str, list[int]] = {}
        self.num_preemptions = self.num_shared = 0

    def run(self, prompts: list[list[int]], params: list[SamplingParams], num_tokens: int) -> list[list[int]]:
        requests = [Request(str(i), len(prompt), num_tokens) for i, prompt in enumerate(prompts)]
        for request, prompt, p in zip(requests, prompts, params, strict=True):
            self.tokens[request.request_id] = list(prompt)
            self.runner.add(request.request_id, prompt, p)
        live = list(requests)
        while live:
            self._maybe_preempt(self.random.choice(live))
            rows = self.random.sample(live, self.random.randint(1, len(live)))
            self._step([(request, self._admit_and_chunk(request, live)) for request in rows])
            for request in [r for r in live if r.num_output_tokens == num_tokens]:
                live.remove(request)
                self._release(request)
                self.runner.remove(request.request_id)
        assert self.references == [0] * len(self.references)
        return [self.tokens[r.request_id] for r in requests]

    def _maybe_preempt(self, request: Request) -> None:
        if request.num_computed_tokens and self.random.random() < 0.2:
            self._release(request)
            request.num_computed_tokens = 0
            self.num_preemptions += 1

    def _release(self, request: Request) -> None:
        for block_id in request.block_ids:
            self.references[block_id] -= 1
        request.block_ids = []

    def _admit_and_chunk(self, request: Request, live: list[Request]) -> int:
        if not request.block_ids:
            self._share_prefix(request, live)
        left = request.num_tokens - request.num_computed_tokens
        num_tokens = left if self.random.random() < 0.4 else self.random.randint(1, left)
        while len(request.block_ids) * self.block_size < request.num_computed_tokens + num_tokens:
            block_id = self.random.choice([i for i, count in enumerate(self.references) if not count])
            self.references[block_id] += 1
            request.block_ids.append(block_id)
        return num_tokens

    def _share_prefix(self, request: Request, live: list[Request]) -> None:
        tokens = self.tokens[request.request_id]
        other = self.random.choice(live)
        full = min(other.num_computed_tokens, len(tokens) - 1) // self.block_size
        while (
            full
            and self.tokens[other.request_id][: full * self.block_size] != tokens[: full * self.block_size]
        ):
            full -= 1
        request.block_ids = other.block_ids[:full] if other is not request else []
        for block_id in request.block_ids:
            self.references[block_id] += 1
        request.num_computed_tokens = len(request.block_ids) * self.block_size
        self.num_shared += len(request.block_ids)

    def _step(self, rows: list[tuple[Request, int]]) -> None:
        batch = self.scheduled(rows)
        result = self.runner.run(batch)
        sampled = iter(result.token_ids)
        for (request, num_tokens), samples in zip(rows, batch.samples, strict=True):
            request.num_computed_tokens += num_tokens
            if samples:
                self.tokens[request.request_id].append(next(sampled))
                request.num_tokens += 1
                request.num_output_tokens += 1
        assert next(sampled, None) is None


prompts_of_a_test = st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=12), min_size=1, max_size=4)


@pytest.mark.parametrize("attention", sorted(BACKENDS))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompts=prompts_of_a_test,
    shared=st.integers(0, 10),
    block_size=st.sampled_from(BLOCK_SIZES),
    window=st.sampled_from([None, 1, 5]),
    seed=st.integers(0, 10_000),
)
def test_any_schedule_gives_the_tokens_of_whole_forward_passes(
    attention: str,
    device: torch.device,
    make_model: Callable[..., DecoderModel],
    scheduled: Callable,
    dense_attention: Callable[..., Tensor],
    prompts: list[list[int]],
    shared: int,
    block_size: int,
    window: int | None,
    seed: int,
) -> None:
    model = make_model(window, device)
    prompts = [list(range(shared)) + prompt for prompt in prompts]
    runner = ModelRunner(model, 30 * len(prompts) + 1, block_size, attention)
    found = RandomSchedule(runner, scheduled, seed).run(prompts, [GREEDY] * len(prompts), num_tokens=5)
    oracle = WholeForward(model, dense_attention)
    assert found == [oracle.greedy(prompt, 5) for prompt in prompts]


def test_random_schedules_do_preempt_and_share_blocks(make_model: Callable, scheduled: Callable) -> None:
    """Without this the test above could hold for schedules in which nothing happens."""
    counts = []
    for seed in range(5):
        schedule = RandomSchedule(ModelRunner(make_model(), 100, 4), scheduled, seed)
        schedule.run([list(range(12))] * 3, [GREEDY] * 3, 6)
        counts.append((schedule.num_preemptions, schedule.num_shared))
    assert sum(preemptions for preemptions, _ in counts) > 5
    assert sum(blocks for _, blocks in counts) > 5


def test_seeded_requests_draw_the_same_tokens_alone_and_under_preemption_in_any_batch(
    make_model: Callable, scheduled: Callable
) -> None:
    """Case E7, through the runner."""
    params = [SamplingParams(seed=s, temperature=3.0, top_p=p) for s, p in [(1, 1.0), (2, 0.9), (-3, 1.0)]]
    prompts = [[1, 2, 3, 4, 5], [9, 8], [1, 2, 3, 4, 5]]
    alone = [
        RandomSchedule(ModelRunner(make_model(), 40, 4, seed=0), scheduled, 0).run([prompt], [p], 8)[0]
        for prompt, p in zip(prompts, params, strict=True)
    ]
    assert alone[0] != alone[2]
    for seed in range(4):
        mixed = RandomSchedule(ModelRunner(make_model(), 100, 4, seed=seed), scheduled, seed)
        found = mixed.run([*prompts, [7]], [*params, SamplingParams(temperature=3.0)], 8)
        assert found[:3] == alone


def test_unseeded_requests_differ_from_each_other_and_repeat_under_the_runners_seed(
    make_model: Callable, scheduled: Callable
) -> None:
    def run(seed: int | None) -> list[list[int]]:
        runner = ModelRunner(make_model(), 100, 4, seed=seed)
        return RandomSchedule(runner, scheduled, 0).run(
            [[1, 2]] * 3, [SamplingParams(temperature=3.0)] * 3, 8
        )

    first = run(5)
    assert len({tuple(tokens) for tokens in first}) == 3
    assert run(5) == first
    assert run(6) != first
    assert run(None) != run(None)


def test_logits_are_computed_for_sampling_rows_only(
    make_model: Callable, scheduled: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    asked: list[int] = []
    compute_logits = model.compute_logits
    monkeypatch.setattr(
        model, "compute_logits", lambda hidden: asked.append(len(hidden)) or compute_logits(hidden)
    )
    runner = ModelRunner(model, 8, 4)
    requests = [Request(str(i), 4, 4) for i in range(3)]
    for i, request in enumerate(requests):
        request.block_ids = [i]
        runner.add(request.request_id, [1, 2, 3, 4], GREEDY)
    result = runner.run(scheduled([(requests[0], 2), (requests[1], 3)]))
    assert list(result.token_ids) == [] and asked == []
    requests[0].num_computed_tokens, requests[1].num_computed_tokens = 2, 3
    result = runner.run(scheduled([(requests[0], 1), (requests[1], 1), (requests[2], 4)]))
    assert len(result.token_ids) == 2 and asked == [2]


def test_a_request_whose_weights_give_nan_fails_alone(make_model: Callable, scheduled: Callable) -> None:
    model = make_model()
    model.embed_tokens.weight[60] = torch.nan
    runner = ModelRunner(model, 8, 4)
    requests = [Request("good", 2, 4), Request("bad", 2, 4)]
    for i, (request, prompt) in enumerate(zip(requests, ([1, 2], [60, 2]), strict=True)):
        request.block_ids = [i]
        runner.add(request.request_id, prompt, GREEDY)
    result = runner.run(scheduled([(request, 2) for request in requests]))
    assert result.token_ids[0] is not None and result.token_ids[1] is None
    assert result.errors[0] is None and "not finite" in result.errors[1]
    assert len(runner.token_ids("good")) == 3 and len(runner.token_ids("bad")) == 2


def test_the_step_is_timed(make_model: Callable, scheduled: Callable, device: torch.device) -> None:
    runner = ModelRunner(make_model(device=device), 8, 4)
    assert runner.last_execute_ns == 0
    request = Request("r", 3, 1)
    request.block_ids = [0]
    runner.add("r", [1, 2, 3], GREEDY)
    runner.run(scheduled([(request, 3)]))
    assert 0 < runner.last_execute_ns < 60e9


@pytest.mark.parametrize(
    ("token_ids", "params", "message"),
    [
        ([], GREEDY, "request r: the prompt has no tokens"),
        ([3, 61], GREEDY, "request r: prompt holds token id 61, the model's are 0 to 60"),
        ([3, -1], GREEDY, "request r: prompt holds token id -1"),
        ([3], SamplingParams(stop_token_ids=(100,)), "request r: stop_token_ids holds token id 100"),
    ],
)
def test_a_bad_request_is_refused_when_added(
    make_model: Callable, token_ids: list[int], params: SamplingParams, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ModelRunner(make_model(), 4, 4).add("r", token_ids, params)
