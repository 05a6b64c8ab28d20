from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost import RooflineCostModel, StepSums, from_dict
from sim.hardware import GPUS
from sim.shapes import SHAPES
from tinyllm.errors import InputError

H100, LLAMA_8B, LLAMA_70B = GPUS["h100"], SHAPES["llama-3.1-8b"], SHAPES["llama-3.1-70b"]
MODELS = st.builds(
    RooflineCostModel,
    st.sampled_from(list(GPUS.values())),
    st.sampled_from(list(SHAPES.values())),
    dtype=st.sampled_from(["bfloat16", "float32"]),
)
STEPS = st.builds(
    StepSums,
    num_tokens=st.integers(1, 20_000),
    num_sampled=st.integers(0, 600),
    decode_seqs=st.integers(0, 600),
    decode_context_tokens=st.integers(0, 10**6),
    prefill_seqs=st.integers(0, 600),
    prefill_tokens=st.integers(0, 20_000),
    prefill_attention_pairs=st.integers(0, 10**9),
    prefill_context_tokens=st.integers(0, 10**6),
    swapped_out_blocks=st.integers(0, 1000),
    swapped_in_blocks=st.integers(0, 1000),
)


def test_one_decode_step_equals_the_sum_worked_out_by_hand() -> None:
    step = StepSums.from_rows(decode=[1024])
    host = 126e-6 + 32 * 32e-6 + 4.4e-6
    # Elements moved by qkv, o, gate-up and down at M = 1; all four are bound by memory.
    moved = (4096 + 4096 * 6144 + 6144) + (4096 + 4096 * 4096 + 4096)
    moved += (4096 + 4096 * 28672 + 28672) + (14336 + 14336 * 4096 + 4096)
    gemm = 32 * (2 * moved / (3.35e12 * 0.849) + 4 * 3.9e-6)
    decode = 32 * (11.0e-6 + 0.183e-6 * 1 * 32 / 32 + 1024 * 4 * 8 * 128 / (3.35e12 * 0.93))
    lm_head = 2 * (4096 + 4096 * 128256 + 128256) / (3.35e12 * 0.849) + 3.9e-6
    expected = host + gemm + decode + lm_head
    assert RooflineCostModel(H100, LLAMA_8B).step_ns(step) == pytest.approx(expected * 1e9, abs=1)


def test_one_prefill_step_on_two_gpus_equals_the_sum_worked_out_by_hand() -> None:
    # 2,000 tokens on top of 1,000: chunk p = 2,000, x = 1,000; half of the heads, KV heads and MLP on each GPU.
    p, x, layers = 2000, 1000, 80
    step = StepSums.from_rows(prefill=[(p, x)])
    host = 126e-6 + layers * 32e-6 + 4.4e-6
    multiplied = 8192 * (32 + 2 * 4) * 128 + 32 * 128 * 8192 + 8192 * 28672 + 14336 * 8192
    gemm = layers * (2 * p * multiplied / (989e12 * 0.798) + 4 * 3.9e-6)  # all four bound by compute
    flops = 4 * 32 * 128 * (p * x + p * (p + 1) / 2)
    moved = 2 * (2 * 4 * 128 * (p + x) + 2 * 32 * 128 * p)
    prefill = layers * (13.3e-6 + flops / (989e12 * 0.71) + moved / (3.35e12 * 0.43))
    lm_head = 2 * (8192 + 8192 * 64128 + 64128) / (3.35e12 * 0.849) + 3.9e-6
    allreduce = 2 * layers * (4.77e-6 + 2 * (2 - 1) / 2 * p * 8192 * 2 / (450e9 * 0.652))
    terms = RooflineCostModel(H100, LLAMA_70B, tp=2).breakdown(step)
    assert terms == pytest.approx(
        {
            "host": host,
            "gemm": gemm,
            "decode_attention": 0,
            "prefill_attention": prefill,
            "lm_head": lm_head,
            "allreduce": allreduce,
            "swap": 0,
        }
    )


def test_swapping_copies_a_block_a_layer_and_both_directions_at_once() -> None:
    # Keys and values of 32 tokens, 8 heads of 128, in bf16; 32 layers; 63 GB/s and 2 µs a copy.
    a_block = 32 * (2e-6 + 2 * 32 * 8 * 128 * 2 / 63e9)
    model, step = RooflineCostModel(H100, LLAMA_8B, block_size=32), StepSums.from_rows(decode=[1024])
    swapping = step._replace(swapped_out_blocks=10, swapped_in_blocks=7)
    assert model.step_ns(swapping) - model.step_ns(step) == pytest.approx(10 * a_block * 1e9, abs=2)
    assert model.breakdown(swapping)["swap"] == pytest.approx(10 * a_block)


@given(MODELS, STEPS)
def test_the_terms_add_up_to_the_step_time(model: RooflineCostModel, step: StepSums) -> None:
    total = sum(model.breakdown(step).values()) * 1e9
    assert model.step_ns(step) == pytest.approx(total, abs=1, rel=1e-12)
    assert model.step_ns(step) == model.step_ns(step)  # once worked out, once remembered


@given(MODELS, STEPS, st.sampled_from(StepSums._fields), st.integers(1, 5000))
def test_more_of_anything_never_takes_less_time(
    model: RooflineCostModel, step: StepSums, field: str, more: int
) -> None:
    larger = step._replace(**{field: getattr(step, field) + more})
    assert model.step_ns(larger) >= model.step_ns(step)


@given(MODELS, st.integers(1, 20_000))
def test_the_gemms_never_beat_the_plain_roofline(model: RooflineCostModel, num_tokens: int) -> None:
    shape, gpu = model.model_shape, model.gpu
    peak, element = (gpu.flops, 2) if model.dtype == "bfloat16" else (gpu.flops_fp32, 4)
    embeddings = shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2)
    # Biases and norms are no GEMMs; 2 % is more than they make up in any known shape.
    weights = 0.98 * (shape.num_parameters - embeddings)
    seconds = model.breakdown(StepSums(num_tokens, 0))["gemm"]
    assert seconds > max(2 * num_tokens * weights / peak, weights * element / gpu.bandwidth)


@given(MODELS)
@settings(max_examples=20)
def test_the_record_gives_the_model_back(model: RooflineCostModel) -> None:
    assert from_dict(model.describe()) == model


def test_decode_rows_cost_decode_attention_only_and_prefill_rows_prefill_attention_only() -> None:
    model = RooflineCostModel(H100, LLAMA_8B)
    decode = model.breakdown(StepSums.from_rows(decode=[100, 200]))
    prefill = model.breakdown(StepSums.from_rows(prefill=[(100, 0)]))
    assert decode["prefill_attention"] == 0 < decode["decode_attention"]
    assert prefill["decode_attention"] == 0 < prefill["prefill_attention"]


def test_a_chunk_that_samples_nothing_pays_no_lm_head() -> None:
    model = RooflineCostModel(H100, LLAMA_8B)
    step = StepSums.from_rows(prefill=[(512, 0)])
    assert model.breakdown(step._replace(num_sampled=0))["lm_head"] == 0
    assert model.step_ns(step._replace(num_sampled=0)) < model.step_ns(step)


@pytest.mark.parametrize(
    "step", [StepSums.from_rows(decode=[1000] * 16), StepSums.from_rows(prefill=[(2048, 0)])]
)
def test_two_gpus_run_a_70b_model_faster_than_one_and_less_than_twice_as_fast(step: StepSums) -> None:
    one, two = (RooflineCostModel(H100, LLAMA_70B, tp=tp).step_ns(step) for tp in (1, 2))
    assert one / 2 < two < one


def test_gpus_beyond_the_kv_heads_each_keep_a_copy_of_one() -> None:
    step = StepSums.from_rows(decode=[10_000] * 8)
    eight, sixteen = (
        RooflineCostModel(H100, LLAMA_70B, tp=tp).breakdown(step)["decode_attention"] for tp in (8, 16)
    )
    saved = LLAMA_70B.num_layers * H100.decode_seq_s * 8 * (8 - 4) / 32
    assert eight - sixteen == pytest.approx(saved)  # fewer heads to compute, the same bytes to read


def test_magnitudes_are_those_that_are_publicly_known() -> None:
    # 16 GB of weights over 3.35 TB/s are 4.8 ms, served decode steps at batch 1 take 6 to 8 ms on an H100.
    one = StepSums.from_rows(decode=[1024])
    assert 6e6 < RooflineCostModel(H100, LLAMA_8B).step_ns(one) < 8e6
    # 2 x 8e9 x 2,048 FLOP are 33 ms at the peak; engines reach 50 to 90 % of it in a full prefill.
    assert 37e6 < RooflineCostModel(H100, LLAMA_8B).step_ns(StepSums.from_rows(prefill=[(2048, 0)])) < 67e6
    # Decode is bound by memory, so the H200 gains by its bandwidth and the A100 loses by it.
    a100, h100, h200 = (RooflineCostModel(GPUS[g], LLAMA_8B).step_ns(one) for g in ("a100", "h100", "h200"))
    assert h200 < h100 < a100 < 2 * h100
    # A small model is bound by the host: more than the weights' own time by a wide margin.
    small = SHAPES["smollm2-135m"]
    assert RooflineCostModel(H100, small).step_ns(one) > 10 * small.weight_bytes("bfloat16") / 3.35e12 * 1e9


def test_float32_weights_take_longer_than_bfloat16_ones() -> None:
    for step in (StepSums.from_rows(decode=[1000]), StepSums.from_rows(prefill=[(512, 0)])):
        wide = RooflineCostModel(H100, LLAMA_8B, dtype="float32").step_ns(step)
        assert wide > 1.5 * RooflineCostModel(H100, LLAMA_8B).step_ns(step)


def test_the_gap_is_in_the_fitted_overheads_unless_given() -> None:
    step = StepSums.from_rows(decode=[10])
    assert RooflineCostModel(H100, LLAMA_8B).gap_ns(step) == 0
    assert RooflineCostModel(H100, LLAMA_8B, gap_s=2e-4).gap_ns(step) == 200_000


def test_the_memo_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.cost.roofline._MEMO_LIMIT", 2)
    model = RooflineCostModel(H100, LLAMA_8B)
    for num_tokens in range(1, 6):
        model.step_ns(StepSums(num_tokens, num_tokens))
    assert len(model._by_tokens) == len(model._by_sampled) == 2


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"tp": 0}, "at least 1"),
        ({"tp": 3}, "do not divide"),
        ({"dtype": "int4"}, "bfloat16, float16, float32"),
        ({"seq_overhead_s": -1.0}, "seq_overhead_s"),
    ],
)
def test_an_option_out_of_range_is_refused(options: dict[str, object], word: str) -> None:
    with pytest.raises(InputError, match=word):
        RooflineCostModel(H100, LLAMA_8B, **options)  # type: ignore[arg-type]


def test_kv_heads_that_cannot_be_shared_out_are_refused() -> None:
    shape = replace(LLAMA_8B, num_heads=24, num_kv_heads=6, head_dim=128)
    with pytest.raises(InputError, match="6 KV heads"):
        RooflineCostModel(H100, shape, tp=4)
