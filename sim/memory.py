"""How many KV blocks fit on a GPU beside the weights: the simulated `num_gpu_blocks`."""

from __future__ import annotations

from typing import Final

from sim.hardware import GPU
from sim.shapes import ModelShape
from tinyllm.errors import InputError

_GIB: Final = 1024**3

DEFAULT_RESERVE_BYTES: Final = 3 * _GIB // 2
"""Activations, CUDA context and workspaces of a GPU. Source and rationale: docs/cost-models.md."""


def num_gpu_blocks(
    gpu: GPU,
    shape: ModelShape,
    *,
    dtype: str = "bfloat16",
    tp: int = 1,
    gpu_memory_utilization: float = 0.9,
    block_size: int = 16,
    reserve_bytes: int = DEFAULT_RESERVE_BYTES,
) -> int:
    """Blocks of the pool: (memory·utilization − weights/tp − reserve) over the bytes of a block on one GPU.

    The tensor parallel GPUs hold the same blocks, each its own KV heads, so the pool is that of one of them.

    Raises:
        InputError: an option out of range, or no room for a single block beside the weights.
    """
    shape.check_tp(tp)
    if not 0 < gpu_memory_utilization <= 1:
        raise InputError(
            f"gpu_memory_utilization is {gpu_memory_utilization}; it must be over 0 and at most 1"
        )
    if block_size < 1:
        raise InputError(f"block_size is {block_size}; it must be at least 1")
    if reserve_bytes < 0:
        raise InputError(f"reserve_bytes is {reserve_bytes}; it must be at least 0")
    budget = int(gpu.memory_bytes * gpu_memory_utilization)
    weights = -(-shape.weight_bytes(dtype) // tp)
    blocks = (budget - weights - reserve_bytes) // (block_size * shape.kv_bytes_per_token(dtype, tp))
    if blocks < 1:
        raise InputError(
            f"{shape.name} in {dtype} does not fit on {gpu.name}: {_gib(weights)} of weights a GPU (tp {tp}) and "
            f"{_gib(reserve_bytes)} of reserve leave no KV block in {_gib(budget)} "
            f"(utilization {gpu_memory_utilization}); use more tp or a higher utilization"
        )
    return blocks


def num_cpu_blocks(
    shape: ModelShape, swap_space: float, *, dtype: str = "bfloat16", tp: int = 1, block_size: int = 16
) -> int:
    """KV blocks of one GPU that fit in `swap_space` GiB of host memory.

    Raises:
        InputError: not a block fits, or more than a machine has.
    """
    if not 0 < swap_space <= 1e6:
        raise InputError(f"--swap-space {swap_space}: give GiB, more than 0 and at most 1e6")
    blocks = int(swap_space * _GIB) // (block_size * shape.kv_bytes_per_token(dtype, tp))
    if blocks < 1:
        raise InputError(f"--swap-space {swap_space}: holds not one KV block; give more")
    return blocks


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"
