"""Paged KV tensors: where the keys and values of a block id lie."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from tinyllm.errors import InputError
from tinyllm.models.memory import empty_in_large_pages


class KVShape(Protocol):
    """The part of a model's configuration that fixes the size of its KV cache."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


def bytes_per_block(shape: KVShape, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block id over all layers, keys and values."""
    return 2 * shape.num_layers * block_size * shape.num_kv_heads * shape.head_dim * dtype.itemsize


def num_blocks_for(memory_bytes: int, shape: KVShape, block_size: int, dtype: torch.dtype) -> int:
    """How many blocks fit into `memory_bytes`.

    Raises:
        InputError: not even one does.
    """
    block_bytes = bytes_per_block(shape, block_size, dtype)
    num_blocks = memory_bytes // block_bytes
    if num_blocks < 1:
        raise InputError(
            f"{memory_bytes:,} bytes of KV memory hold no block: one block of {block_size} tokens takes "
            f"{block_bytes:,} bytes; give more memory or a smaller --block-size"
        )
    return num_blocks


def available_memory(device: torch.device) -> int | None:
    """Free bytes on the device now; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else None


class KVCache:
    """Keys and values of all blocks, one allocation each.

    Attributes:
        k, v: [num_layers, num_blocks, block_size, num_kv_heads, head_dim]. The slot of a token is
            `block_id * block_size + offset in the block`; compiled attention keeps to the blocks and orders what is
            in each one in its own way (`attention.panel_cache`). A slot that no live token owns holds anything, NaN
            included: attention must not even multiply it by zero.
        num_blocks, block_size: as given.

    Raises:
        InputError: no block is asked for, or the blocks do not fit into the device's free memory.
    """

    def __init__(
        self, shape: KVShape, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise InputError(
                f"a KV cache of {num_blocks} blocks of {block_size} tokens holds nothing: "
                "give --num-gpu-blocks and --block-size of at least 1"
            )
        _check_memory(num_blocks, bytes_per_block(shape, block_size, dtype), device)
        size = (shape.num_layers, num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Not filled: the system hands a page out on first touch, so a large, mostly unused cache costs nothing.
        self.k, self.v = (_empty(size, device, dtype) for _ in range(2))

    def write(self, layer: int, slot_mapping: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k and v [num_tokens, num_kv_heads, head_dim] in the slots [num_tokens] int64."""
        self.k[layer].flatten(0, 1).index_copy_(0, slot_mapping, k)
        self.v[layer].flatten(0, 1).index_copy_(0, slot_mapping, v)

    def gather(self, layer: int, block_ids: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first `num_tokens` tokens in the blocks [n]: each [num_tokens, kv_heads, head_dim]."""
        k, v = (
            cache[layer].index_select(0, block_ids).flatten(0, 1)[:num_tokens] for cache in (self.k, self.v)
        )
        return k, v


def _empty(size: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    if device.type == "cpu":
        return empty_in_large_pages(size, dtype)
    return torch.empty(size, device=device, dtype=dtype)


def _check_memory(num_blocks: int, block_bytes: int, device: torch.device) -> None:
    free = available_memory(device)
    if free is None or num_blocks * block_bytes <= free:
        return
    fit = free // block_bytes
    raise InputError(
        f"a KV cache of {num_blocks:,} blocks takes {num_blocks * block_bytes / 2**30:.2f} GiB and "
        f"{free / 2**30:.2f} GiB are free on {device}: "
        + (f"give --num-gpu-blocks {fit} or less" if fit else "not even one block fits, free some memory")
    )
