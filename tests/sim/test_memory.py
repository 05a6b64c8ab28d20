from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.hardware import GPUS, gpu_by_name
from sim.memory import DEFAULT_RESERVE_BYTES, num_cpu_blocks, num_gpu_blocks
from sim.shapes import SHAPES
from tinyllm.errors import InputError

GIB = 1024**3
A100, H100, LLAMA_8B, LLAMA_70B = GPUS["a100"], GPUS["h100"], SHAPES["llama-3.1-8b"], SHAPES["llama-3.1-70b"]


def test_the_pool_of_llama_8b_on_80_gb_is_within_one_percent_of_what_vllm_reports() -> None:
    # vLLM's start-up log on a GPU of 79.14 GiB at 0.90: weights 14.99 GiB, KV cache 54.93 GiB.
    reported = int(54.93 * GIB) // (16 * 131072)
    assert num_gpu_blocks(A100, LLAMA_8B) == pytest.approx(reported, rel=0.01)


def test_the_blocks_are_the_budget_over_the_block_worked_out_by_hand() -> None:
    budget = int(A100.memory_bytes * 0.5)
    expected = (budget - 2 * 8_030_261_248 - 1000) // (32 * 131072)
    assert (
        num_gpu_blocks(A100, LLAMA_8B, gpu_memory_utilization=0.5, block_size=32, reserve_bytes=1000)
        == expected
    )


@given(
    st.sampled_from(sorted(GPUS)),
    st.floats(0.5, 1.0),
    st.sampled_from([1, 16, 256]),
    st.integers(0, 4 * GIB),
    st.sampled_from([1, 2, 4, 8, 16]),
)
def test_weights_reserve_and_pool_fill_the_budget_and_one_more_block_would_not_fit(
    gpu: str, utilization: float, block_size: int, reserve: int, tp: int
) -> None:
    blocks = num_gpu_blocks(
        GPUS[gpu],
        LLAMA_8B,
        tp=tp,
        gpu_memory_utilization=utilization,
        block_size=block_size,
        reserve_bytes=reserve,
    )
    block_bytes = block_size * LLAMA_8B.kv_bytes_per_token("bfloat16", tp)
    used = LLAMA_8B.weight_bytes("bfloat16") / tp + reserve
    budget = GPUS[gpu].memory_bytes * utilization
    assert used + blocks * block_bytes <= budget + 1
    assert used + (blocks + 1) * block_bytes > budget - 1


def test_two_gpus_hold_more_than_twice_the_blocks_of_one() -> None:
    # Half of the weights leave each GPU, and a block is half as large on each.
    assert num_gpu_blocks(H100, LLAMA_8B, tp=2) > 2 * num_gpu_blocks(H100, LLAMA_8B)


def test_a_model_that_does_not_fit_is_refused_with_numbers_and_mend() -> None:
    with pytest.raises(InputError) as error:
        num_gpu_blocks(H100, LLAMA_70B)
    message = str(error.value)
    for word in ("llama-3.1-70b", "h100", "131.42 GiB", "1.50 GiB", "71.20 GiB", "more tp", "utilization"):
        assert word in message
    assert num_gpu_blocks(H100, LLAMA_70B, tp=4) > 10_000


def test_weights_that_fit_without_room_for_a_block_are_refused() -> None:
    exact = (2 * 8_030_261_248 + DEFAULT_RESERVE_BYTES + 1) / H100.memory_bytes
    with pytest.raises(InputError, match="no KV block"):
        num_gpu_blocks(H100, LLAMA_8B, gpu_memory_utilization=exact)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization"),
        ({"gpu_memory_utilization": 1.01}, "gpu_memory_utilization"),
        ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization"),
        ({"block_size": 0}, "block_size"),
        ({"reserve_bytes": -1}, "reserve_bytes"),
        ({"tp": 5}, "do not divide"),
        ({"dtype": "int8"}, "int8"),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(options: dict[str, object], word: str) -> None:
    with pytest.raises(InputError, match=word):
        num_gpu_blocks(H100, LLAMA_8B, **options)  # type: ignore[arg-type]


def test_gpus_are_known_by_name_in_any_case_and_others_refused() -> None:
    assert gpu_by_name("H100") is H100
    with pytest.raises(InputError, match=r"b300.*h100, h200, a100"):
        gpu_by_name("b300")


def test_the_host_blocks_fill_the_swap_space() -> None:
    # 131,072 bytes a token in bf16, half of it on each of two GPUs.
    assert num_cpu_blocks(LLAMA_8B, 4, block_size=16) == 4 * GIB // (16 * 131_072)
    assert num_cpu_blocks(LLAMA_8B, 4, block_size=16, tp=2) == 2 * 4 * GIB // (16 * 131_072)


@pytest.mark.parametrize("swap_space", [0, -1, float("nan"), 1e-6, 1e7])
def test_a_swap_space_without_a_block_is_refused(swap_space: float) -> None:
    with pytest.raises(InputError, match="--swap-space"):
        num_cpu_blocks(LLAMA_8B, swap_space)
