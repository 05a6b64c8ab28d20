"""The compiled attention of one step: which rows go through which kernel."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from tinyllm.models.tile import tile_address
from tinyllm.runner.attention.base import AttentionShape
from tinyllm.runner.attention.paged_decode import Singles, paged_decode
from tinyllm.runner.attention.paged_prefill import Chunks, paged_prefill
from tinyllm.runner.attention.panel_cache import LayerCache
from tinyllm.runner.batch import FlatBatch

_CHUNK: Final = 4
"""New tokens from which a row attends as a chunk; fewer attend one by one."""

NO_WINDOW: Final = 1 << 30
"""More tokens than any context has."""


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def attend(
    q: Any, keys: Any, values: Any, singles: Any, chunks: Any, window: Any, out: Any, tile: Any
) -> None:  # fmt: skip
    """Fill `out` at the tokens of singles and chunks, by the kernel for each; their arguments are these."""
    if len(chunks.starts):
        paged_prefill(q, keys, values, chunks, window, out, tile)
    if len(singles.tokens):
        paged_decode(q, keys, values, singles, window, out, tile)


class StepAttention(NamedTuple):
    """The rows of a step by the kernel that takes them."""

    singles: Singles
    chunks: Chunks

    @classmethod
    def of(cls, batch: FlatBatch, shape: AttentionShape) -> StepAttention:
        """Plan a step."""
        tables = batch.block_tables.numpy()
        tokens = np.flatnonzero(np.repeat(batch.query_lens, batch.query_lens) < _CHUNK)
        rows = np.flatnonzero(batch.query_lens >= _CHUNK)
        return cls(
            singles_of(batch, tokens, shape),
            Chunks.of(
                batch.query_start[rows],
                batch.query_lens[rows],
                batch.context_lens[rows],
                tables[rows],
                num_heads=shape.num_heads,
                num_kv_heads=shape.num_kv_heads,
                head_dim=shape.head_dim,
                num_threads=torch.get_num_threads(),
            ),
        )

    def attend(self, q: Any, cache: LayerCache, window: int | None, out: Any) -> None:
        """Fill `out` from q, both [num_tokens, num_heads, head_dim], once keys and values are in the layer's cache."""
        attend(q, *cache, self.singles, self.chunks, window or NO_WINDOW, out, tile_address(torch.float32))


def singles_of(batch: FlatBatch, tokens: NDArray[np.int64], shape: AttentionShape) -> Singles:
    """Some tokens [n] of a step, which attend one by one."""
    row_of_token = np.repeat(np.arange(len(batch.query_lens)), batch.query_lens)
    return Singles.of(
        tokens,
        batch.positions.numpy()[tokens] + 1,
        batch.block_tables.numpy()[row_of_token[tokens]],
        num_heads=shape.num_heads,
        head_dim=shape.head_dim,
        num_threads=torch.get_num_threads(),
    )
