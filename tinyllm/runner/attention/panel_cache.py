"""How the compiled attention lays a block out: keys and values in the panels that tiles of products read."""

from __future__ import annotations

from typing import Any

import torch
from numba import njit, prange
from numpy.typing import NDArray

from tinyllm.models.formats.base import PANEL
from tinyllm.models.panels import FASTMATH
from tinyllm.runner.attention.base import AttentionShape
from tinyllm.runner.kv_cache import KVCache

LayerCache = tuple[NDArray[Any], NDArray[Any]]
"""Keys and values of one layer: the memory of the KV cache, each block in an order of its own.

keys float32 [num_blocks, num_kv_heads, block_size / PANEL, head_dim, PANEL]: PANEL tokens side by side;
values float32 [num_blocks, num_kv_heads, head_dim / PANEL, block_size, PANEL]: PANEL channels side by side.
"""


def panel_cache(kv_cache: KVCache, shape: AttentionShape) -> LayerCache | None:
    """The cache of all layers in panels; None where it is not float32 on the CPU, or its sizes are no whole panels.

    Keys and values have one dimension more than those of one layer, the first: [num_layers, ...].
    """
    block_size, heads, head_dim = kv_cache.block_size, shape.num_kv_heads, shape.head_dim
    if not kv_cache.k.is_cpu or kv_cache.k.dtype != torch.float32 or block_size % PANEL or head_dim % PANEL:
        return None
    k_shape = (-1, kv_cache.num_blocks, heads, block_size // PANEL, head_dim, PANEL)
    v_shape = (-1, kv_cache.num_blocks, heads, head_dim // PANEL, block_size, PANEL)
    return kv_cache.k.numpy().reshape(k_shape), kv_cache.v.numpy().reshape(v_shape)


@njit(parallel=True, fastmath=FASTMATH, nogil=True, cache=True)  # type: ignore[untyped-decorator]
def store(k: Any, v: Any, slots: Any, keys: Any, values: Any) -> None:
    """Put k and v [tokens, num_kv_heads, head_dim] into their slots [tokens] of a layer's cache."""
    for token in prange(len(slots)):
        for head in range(k.shape[1]):
            store_key(k[token, head], slots[token], head, keys)
            store_value(v[token, head], slots[token], head, values)


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def store_key(vector: Any, slot: Any, head: Any, keys: Any) -> None:
    """Put one vector [head_dim] into a slot of the keys."""
    block_size = keys.shape[2] * PANEL
    block, offset = slot // block_size, slot % block_size
    for channel in range(len(vector)):
        keys[block, head, offset // PANEL, channel, offset % PANEL] = vector[channel]


@njit(fastmath=FASTMATH, cache=True)  # type: ignore[untyped-decorator]
def store_value(vector: Any, slot: Any, head: Any, values: Any) -> None:
    """Put one vector [head_dim] into a slot of the values."""
    block, offset = slot // values.shape[3], slot % values.shape[3]
    for panel in range(values.shape[2]):
        for lane in range(PANEL):
            values[block, head, panel, offset, lane] = vector[panel * PANEL + lane]
