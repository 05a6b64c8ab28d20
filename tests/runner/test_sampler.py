from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.runner import logits as logits_module
from tinyllm.runner.noise import uniform
from tinyllm.runner.request import RunnerRequest
from tinyllm.runner.sampler import Sampler

GREEDY = SamplingParams(temperature=0)


def request(
    params: SamplingParams, prompt: Sequence[int] = (0,), output: Sequence[int] = (), seed: int = 0
) -> RunnerRequest:
    made = RunnerRequest(prompt, params, params.seed if params.seed is not None else seed)
    for token_id in output:
        made.append(token_id)
    return made


def sample(logits: Tensor, *requests: RunnerRequest) -> list[int | None]:
    return list(Sampler([]).sample(logits.clone(), requests).token_ids)


def allowed_by_brute_force(logits: Tensor, params: SamplingParams) -> dict[int, float]:
    """Token ids and probabilities after temperature, min-p, top-k and top-p, one rule at a time, in float64."""
    p = (logits.double() / params.temperature).softmax(-1).tolist()
    left = {i: x for i, x in enumerate(p) if x > 0 and x >= params.min_p * max(p)}
    ranked = sorted(left, key=lambda i: -left[i])[: params.top_k if params.top_k > 0 else None]
    total, reached, kept = sum(left[i] for i in ranked), 0.0, []
    for i in ranked:
        if params.top_p < 1 and reached >= params.top_p * total and kept:
            break
        kept.append(i)
        reached += left[i]
    return {i: left[i] / sum(left[j] for j in kept) for i in kept}


filters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 10, 1000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.1, 1e-6]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
)


@settings(max_examples=60, deadline=None)
@given(
    params=st.lists(filters, min_size=1, max_size=3),
    seed=st.integers(0, 10_000),
    first=st.sampled_from([2, 256]),
)
def test_each_draw_is_the_one_that_brute_force_makes_of_the_same_noise(
    params: list[SamplingParams], seed: int, first: int
) -> None:
    logits = torch.randn(len(params), 40, generator=torch.Generator().manual_seed(seed)) * 2
    requests = [request(p, seed=seed + row) for row, p in enumerate(params)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logits_module, "_FIRST_CANDIDATES", first)
        drawn = sample(logits, *requests)
    for row, (p, token_id) in enumerate(zip(params, drawn, strict=True)):
        allowed = allowed_by_brute_force(logits[row], p)
        ranked = p.top_k > 0 or p.top_p < 1
        order = list(allowed) if ranked else sorted(allowed)
        bounds = np.cumsum([allowed[i] for i in order])
        noise = uniform(seed + row, 0)
        index = int(np.searchsorted(bounds, noise, side="right"))
        if np.abs(bounds - noise).min() > 1e-5:
            assert token_id == order[min(index, len(order) - 1)]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(top_k=4),
        SamplingParams(top_p=0.7),
        SamplingParams(min_p=0.2, temperature=1.5),
        SamplingParams(top_k=5, top_p=0.8, temperature=2.0),
    ],
    ids=str,
)
def test_draws_have_the_frequencies_of_the_filtered_distribution(params: SamplingParams) -> None:
    logits = torch.randn(12, generator=torch.Generator().manual_seed(3)) * 1.5
    draws = 6000
    drawn = sample(logits.expand(draws, -1), *(request(params, seed=seed) for seed in range(draws)))
    expected = allowed_by_brute_force(logits, params)
    found = Counter(drawn)
    assert set(found) <= set(expected)
    test = chisquare([found[i] for i in expected], [p * draws for p in expected.values()])
    assert test.pvalue > 0.001


def test_the_noise_of_successive_tokens_and_of_neighbouring_seeds_is_uniform_and_unrelated() -> None:
    noise = np.array([[uniform(seed, index) for index in range(200)] for seed in range(-100, 100)])
    counts, _ = np.histogram(noise, bins=50, range=(0, 1))
    assert chisquare(counts).pvalue > 0.001
    assert abs(np.corrcoef(noise[:, :-1].ravel(), noise[:, 1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]) < 0.02
    assert len(np.unique(noise)) == noise.size


def test_a_seeded_row_draws_the_same_in_any_batch_and_an_unseeded_one_beside_it_may_differ() -> None:
    """Case E7."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(1, 50, generator=generator)
    seeded = [request(SamplingParams(seed=7), output=[1] * n) for n in range(20)]
    alone = [sample(row, r)[0] for r in seeded]
    others = torch.randn(3, 50, generator=generator)
    unseeded = [request(SamplingParams(), seed=s) for s in (1, 2)]
    mixed = [
        sample(torch.cat([others[:2], row, others[2:]]), *unseeded, r, request(GREEDY))[2] for r in seeded
    ]
    assert mixed == alone
    assert len(set(alone)) > 5
    assert len({sample(row, request(SamplingParams(), seed=s))[0] for s in range(20)}) > 5


@pytest.mark.parametrize("temperature", [1e-5, 0.01, 1.0, 1e6])
def test_minus_infinity_in_mixed_greedy_and_random_rows_gives_finite_choices(temperature: float) -> None:
    """Case E8."""
    logits = torch.full((4, 30), -torch.inf)
    logits[:, 11], logits[1:, 12] = 5.0, 1e4
    params = SamplingParams(temperature=temperature, top_p=0.9, logprobs=2)
    requests = [request(p) for p in (GREEDY, SamplingParams(temperature=temperature), params, GREEDY)]
    result = Sampler([]).sample(logits, requests)
    assert result.errors is None
    assert result.token_ids[0] == 11 and result.token_ids[3] == 12
    assert set(result.token_ids) <= {11, 12}
    logprobs = result.logprobs[2]
    assert logprobs.top_token_ids == (12, 11)
    assert all(not math.isnan(x) for x in (logprobs.logprob, *logprobs.top_logprobs))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "bad_params", [GREEDY, SamplingParams(), SamplingParams(top_k=3), SamplingParams(top_p=0.5)]
)
def test_a_row_that_cannot_be_sampled_fails_alone(bad: float, bad_params: SamplingParams) -> None:
    logits = torch.randn(3, 30, generator=torch.Generator().manual_seed(0))
    params = [SamplingParams(seed=1, top_p=0.8), bad_params, GREEDY]
    expected = sample(logits, *(request(p) for p in params))
    logits[1] = -math.inf
    logits[1, 4] = bad
    result = Sampler([]).sample(logits, [request(p) for p in params])
    assert result.token_ids == [expected[0], None, expected[2]]
    assert result.errors[0] is None and result.errors[2] is None
    assert ("-inf" if bad == -math.inf else "not finite") in result.errors[1]


def test_a_greedy_row_takes_the_likeliest_token_and_the_first_of_equal_ones() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [4.0, 0.0, 0.0, 0.0]])
    assert sample(logits, request(GREEDY), request(SamplingParams(temperature=1e-6))) == [1, 0]


def test_penalties_equal_their_formulas_token_by_token() -> None:
    params = SamplingParams(
        temperature=0, repetition_penalty=1.5, presence_penalty=0.4, frequency_penalty=0.3
    )
    prompt, output = [3, 3, 5], [5, 7, 7, 7]
    logits = torch.randn(3, 12, generator=torch.Generator().manual_seed(1))
    expected = logits.clone()
    for token in range(12):
        x = expected[1, token].item()
        if token in prompt + output:
            x = x / 1.5 if x > 0 else x * 1.5
        expected[1, token] = x - 0.3 * output.count(token) - 0.4 * (token in output)
    logits_module.apply_penalties(
        logits, [request(GREEDY, prompt, output), request(params, prompt, output), request(GREEDY)]
    )
    torch.testing.assert_close(logits, expected)


def test_penalties_before_the_first_output_token_and_of_minus_infinity_stay_finite_or_minus_infinity() -> (
    None
):
    params = SamplingParams(repetition_penalty=1.5, presence_penalty=1.0, frequency_penalty=1.0)
    logits = torch.tensor([[-torch.inf, 2.0, 1.0]])
    logits_module.apply_penalties(logits, [request(params, [0, 1])])
    assert logits.tolist() == [[-math.inf, pytest.approx(2 / 1.5), 1.0]]


def test_eos_and_stop_ids_cannot_be_sampled_before_min_tokens() -> None:
    params = SamplingParams(temperature=0, min_tokens=2, max_tokens=5, stop_token_ids=(4,))
    logits = torch.tensor([[0.0, 9.0, 1.0, 2.0, 8.0]])
    chosen = [
        Sampler([1]).sample(logits.clone(), [request(params, output=[0] * n)]).token_ids[0] for n in range(4)
    ]
    assert chosen == [3, 3, 1, 1]


def test_logprobs_are_those_of_the_raw_logits_for_the_rows_that_ask() -> None:
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(5))
    params = SamplingParams(temperature=0.2, repetition_penalty=2.0, logprobs=3)
    result = Sampler([]).sample(
        logits.clone(), [request(GREEDY), request(params, [1]), request(SamplingParams(logprobs=0))]
    )
    raw = logits.log_softmax(-1)
    first, second, third = result.logprobs
    assert first is None
    assert second.logprob == pytest.approx(raw[1, result.token_ids[1]].item())
    assert second.top_token_ids == tuple(raw[1].topk(3).indices.tolist())
    assert second.top_logprobs == pytest.approx(raw[1].topk(3).values.tolist())
    assert second.rank == 1 + int((raw[1] > second.logprob + 1e-6).sum())
    assert third.top_token_ids == () and third.logprob < 0


def test_draws_on_cuda_are_those_of_the_cpu(device: torch.device) -> None:
    logits = torch.randn(6, 400, generator=torch.Generator().manual_seed(2))
    params = [SamplingParams(seed=s, top_p=p, top_k=k) for s, p, k in [(1, 1, 0), (2, 0.9, 0), (3, 1, 20)]]
    requests = [request(p) for p in [*params, GREEDY, *params[:2]]]
    found = Sampler([]).sample(logits.to(device), requests).token_ids
    assert found == sample(logits, *requests)
