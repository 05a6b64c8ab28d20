"""The compiled decoder gives what the model gives, and leaves the same keys and values, in every family."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.models.llama import LlamaForCausalLM
from tinyllm.policy.request import Request
from tinyllm.runner import fused
from tinyllm.runner.batch import FlatBatch
from tinyllm.runner.fused import fused_decoder
from tinyllm.runner.model_runner import ModelRunner

FAMILIES = {
    "llama": {},
    "biased": {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True},
    "qwen3": {"qk_norm": True},
    "windowed": {"sliding_window": 5, "windowed_layers": (True, False)},
    "one query a head": {"num_heads": 2, "num_kv_heads": 2},
    "many queries a head": {"num_heads": 30, "num_kv_heads": 1},
}
BLOCK_SIZE, NUM_BLOCKS = 16, 60


@pytest.fixture(scope="module", params=FAMILIES)
def models(
    request: pytest.FixtureRequest, make_model: Callable[..., LlamaForCausalLM]
) -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """One model twice: as it is, and packed."""
    config = replace(make_model().config, head_dim=16, **FAMILIES[request.param])
    made = LlamaForCausalLM(config, torch.float32).eval()
    generator = torch.Generator().manual_seed(3)
    for parameter in made.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    packed = copy.deepcopy(made)
    packed.pack()
    return made, packed


FEW = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), min_size=1, max_size=4)
DECODES = st.lists(st.tuples(st.integers(0, 12), st.just(1)), min_size=1, max_size=30)
LONG = st.lists(st.tuples(st.integers(0, 70), st.integers(1, 50)), min_size=1, max_size=3)


@pytest.fixture(autouse=True, scope="module")
def _small_pieces() -> Iterator[None]:
    """So that a test's steps have several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "_PIECE", 20)
        yield


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(FEW, DECODES, LONG), st.integers(0, 999))
def test_any_mix_of_chunks_and_decodes_gives_the_hidden_states_of_the_model(
    models: tuple[LlamaForCausalLM, LlamaForCausalLM],
    scheduled: Callable,
    rows: list[tuple[int, int]],
    seed: int,
) -> None:
    plain, packed = models
    runners = ModelRunner(plain, NUM_BLOCKS, BLOCK_SIZE, "sdpa"), ModelRunner(packed, NUM_BLOCKS, BLOCK_SIZE)
    assert runners[0].fused is None and runners[1].fused is not None
    generator = torch.Generator().manual_seed(seed)
    free = torch.randperm(NUM_BLOCKS, generator=generator).tolist()
    requests = []
    for number, (context, chunk) in enumerate(rows):
        # Two more: a last step reads the keys and values that the mixed one has left.
        length = context + chunk + 2
        request = Request(str(number), length, 9)
        request.block_ids = [free.pop() for _ in range(-(-length // BLOCK_SIZE))]
        ids = torch.randint(0, 61, (length,), generator=generator).tolist()
        for runner in runners:
            runner.add(request.request_id, ids, SamplingParams(temperature=0))
        requests.append(request)
    for step in ([context for context, _ in rows], [chunk for _, chunk in rows], [2] * len(rows)):
        work = [(request, tokens) for request, tokens in zip(requests, step, strict=True) if tokens]
        if not work:
            continue
        batch = FlatBatch.build(scheduled(work), runners[0]._requests, BLOCK_SIZE, runners[0].device)
        everything = batch._replace(logits_rows=torch.arange(len(batch.input_ids)))
        with torch.inference_mode():
            expected = runners[0].forward(everything)
            for flat in (everything, batch):
                hidden = runners[1].forward(flat)
                assert torch.allclose(hidden, expected[flat.logits_rows], atol=1e-4)
        for request, tokens in work:
            request.num_computed_tokens += tokens


def test_slots_of_nobody_may_hold_anything(
    models: tuple[LlamaForCausalLM, LlamaForCausalLM], scheduled: Callable
) -> None:
    _, packed = models
    runner = ModelRunner(packed, NUM_BLOCKS, BLOCK_SIZE)
    for cache in (runner.kv_cache.k, runner.kv_cache.v):
        cache.fill_(float("nan"))
    request = Request("0", 30, 9)
    request.block_ids = list(range(8))
    runner.add("0", list(range(30)), SamplingParams(temperature=0))
    batch = FlatBatch.build(scheduled([(request, 30)]), runner._requests, BLOCK_SIZE, runner.device)
    with torch.inference_mode():
        for flat in (batch, batch._replace(logits_rows=torch.arange(30))):
            assert torch.isfinite(runner.forward(flat)).all()


def test_a_runner_takes_it_for_packed_weights_unless_another_backend_is_asked_for(
    make_model: Callable[..., LlamaForCausalLM],
) -> None:
    model = LlamaForCausalLM(replace(make_model().config, head_dim=16), torch.float32)
    assert ModelRunner(model, 4, BLOCK_SIZE).fused is None
    model.pack()
    assert ModelRunner(model, 4, BLOCK_SIZE).fused is not None
    assert ModelRunner(model, 4, BLOCK_SIZE, "sdpa").fused is None
    assert ModelRunner(model, 4, BLOCK_SIZE, "reference").fused is None
    assert ModelRunner(model, 4, BLOCK_SIZE // 2).fused is None


def test_what_it_does_not_know_it_leaves_to_the_model(make_model: Callable[..., LlamaForCausalLM]) -> None:
    model = LlamaForCausalLM(replace(make_model().config, head_dim=16), torch.float32)
    kv_cache = ModelRunner(model, 4, BLOCK_SIZE).kv_cache
    model.pack()
    assert fused_decoder(model, kv_cache) is not None
    for config, dtype in (
        (replace(model.config, hidden_act="gelu"), torch.float32),
        (replace(model.config, intermediate_size=40), torch.float32),
        (model.config, torch.bfloat16),
    ):
        other = LlamaForCausalLM(config, dtype)
        other.pack()
        assert fused_decoder(other, kv_cache) is None


@pytest.mark.parametrize("size", [1e4, 1e15, 1e22, 1e38])
def test_weights_of_any_size_end_no_step(make_model: Callable[..., LlamaForCausalLM], size: float) -> None:
    model = LlamaForCausalLM(replace(make_model().config, head_dim=16), torch.float32)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * size
    model.pack()
    assert ModelRunner(model, 4, BLOCK_SIZE).fused is not None
