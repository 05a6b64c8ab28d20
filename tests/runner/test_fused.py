"""The compiled decoder gives what the model gives, and leaves the same keys and values, in every family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.models.llama import LlamaForCausalLM
from tinyllm.models.matmul import MEDIUM, SMALL
from tinyllm.policy.request import Request
from tinyllm.runner.batch import FlatBatch
from tinyllm.runner.fused import FusedDecoder, fused_decoder
from tinyllm.runner.model_runner import ModelRunner

FAMILIES = {
    "llama": {},
    "biased": {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True},
    "qwen3": {"qk_norm": True},
    "windowed": {"sliding_window": 5, "windowed_layers": (True, False)},
    "one head": {"num_heads": 2, "num_kv_heads": 2},
}
BLOCK_SIZE, NUM_BLOCKS = 4, 160


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, make_model: Callable[..., LlamaForCausalLM]) -> LlamaForCausalLM:
    config = replace(make_model().config, **FAMILIES[request.param])
    made = LlamaForCausalLM(config, torch.float32).eval()
    generator = torch.Generator().manual_seed(3)
    for parameter in made.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return made


FEW = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), min_size=1, max_size=4).filter(
    lambda rows: sum(chunk for _, chunk in rows) <= SMALL
)
MANY = st.lists(st.tuples(st.integers(0, 12), st.just(1)), min_size=SMALL + 1, max_size=2 * SMALL + 3)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(FEW, MANY),
    st.integers(0, 999),
)
def test_any_mix_of_chunks_and_decodes_gives_the_hidden_states_and_the_cache_of_the_model(
    model: LlamaForCausalLM, scheduled: Callable, rows: list[tuple[int, int]], seed: int
) -> None:
    runner = ModelRunner(model, NUM_BLOCKS, BLOCK_SIZE, "sdpa")
    generator = torch.Generator().manual_seed(seed)
    for cache in (runner.kv_cache.k, runner.kv_cache.v):
        cache.normal_(generator=generator)
    work, next_block = [], 0
    for number, (context, chunk) in enumerate(rows):
        request = Request(str(number), context + chunk, 9)
        request.num_computed_tokens = context
        num_blocks = -(-(context + chunk) // BLOCK_SIZE)
        # From the back of the pool, last block first: a table is no range.
        last = NUM_BLOCKS - 1 - next_block
        request.block_ids = list(range(last, last - num_blocks, -1))
        next_block += num_blocks
        ids = torch.randint(0, 61, (context + chunk,), generator=generator).tolist()
        runner.add(request.request_id, ids, SamplingParams(temperature=0))
        work.append((request, chunk))
    batch = FlatBatch.build(scheduled(work), runner._requests, BLOCK_SIZE, runner.device)
    before = runner.kv_cache.k.clone(), runner.kv_cache.v.clone()
    with torch.inference_mode():
        expected = runner.forward(batch)
        written = runner.kv_cache.k.clone(), runner.kv_cache.v.clone()
        for cache, old in zip((runner.kv_cache.k, runner.kv_cache.v), before, strict=True):
            cache.copy_(old)
        fused = FusedDecoder(model, runner.kv_cache)
        assert fused.takes(batch)
        hidden = fused(batch)
    assert torch.allclose(hidden, expected, atol=1e-4)
    assert torch.allclose(runner.kv_cache.k, written[0], atol=1e-4)
    assert torch.allclose(runner.kv_cache.v, written[1], atol=1e-4)


def test_it_leaves_long_chunks_and_large_steps_to_the_model(
    make_model: Callable[..., LlamaForCausalLM], scheduled: Callable
) -> None:
    runner = ModelRunner(make_model(), NUM_BLOCKS, BLOCK_SIZE)
    assert runner.fused is not None

    def step(*chunks: int) -> FlatBatch:
        work = []
        for number, chunk in enumerate(chunks):
            request = Request(f"{len(chunks)}-{number}", chunk, 9)
            request.block_ids = list(range(-(-chunk // BLOCK_SIZE)))
            runner.add(request.request_id, [1] * chunk, SamplingParams(temperature=0))
            work.append((request, chunk))
        return FlatBatch.build(scheduled(work), runner._requests, BLOCK_SIZE, runner.device)

    assert runner.fused.takes(step(SMALL)) and not runner.fused.takes(step(SMALL + 1))
    assert runner.fused.takes(step(*[1] * MEDIUM)) and not runner.fused.takes(step(*[1] * (MEDIUM + 1)))


def test_a_runner_takes_it_for_small_steps_unless_another_backend_is_asked_for(
    make_model: Callable[..., LlamaForCausalLM],
) -> None:
    model = make_model()
    assert ModelRunner(model, 4, BLOCK_SIZE).fused is not None
    assert ModelRunner(model, 4, BLOCK_SIZE, "sdpa").fused is None
    assert ModelRunner(model, 4, BLOCK_SIZE, "reference").fused is None


def test_what_it_does_not_know_it_leaves_to_the_model(make_model: Callable[..., LlamaForCausalLM]) -> None:
    model = make_model()
    kv_cache = ModelRunner(model, 4, BLOCK_SIZE).kv_cache
    assert fused_decoder(model, kv_cache) is not None
    gelu = LlamaForCausalLM(replace(model.config, hidden_act="gelu"), torch.float32)
    assert fused_decoder(gelu, kv_cache) is None
    assert fused_decoder(LlamaForCausalLM(model.config, torch.bfloat16), kv_cache) is None
