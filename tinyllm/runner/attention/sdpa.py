"""Attention by torch's scaled_dot_product_attention over gathered keys; runs on any device."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (what everybody calls it)
from numpy.typing import NDArray
from torch import Tensor

from tinyllm.runner.attention.base import Attend, AttentionBackend
from tinyllm.runner.batch import FlatBatch

MAX_GATHERED_TOKENS = 1 << 16
"""Decode rows share one padded call as long as it gathers no more tokens: it bounds memory, and padding too."""

AttendRows = Callable[[int, Tensor], Tensor]
"""(layer, q of some rows) to their output, once the step's keys and values are in the cache."""


class SDPAAttention(AttentionBackend):
    """Rows of one token are batched, padded to the longest of their group; longer rows go one by one."""

    def prepare(self, batch: FlatBatch) -> Attend:
        parts = [
            (slice(*batch.query_start[row : row + 2].tolist()), self._plan_prefill(batch, row))
            for row in np.flatnonzero(batch.query_lens > 1).tolist()
        ]
        decode_rows = np.flatnonzero(batch.query_lens == 1)
        attend_decodes = self.plan_decode(batch, decode_rows) if len(decode_rows) else None
        decode_tokens = _index(batch.query_start[decode_rows], batch)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.kv_cache.write(layer, batch.slot_mapping, k, v)
            if attend_decodes and not parts:
                return attend_decodes(layer, q)
            out = torch.empty_like(q)
            for tokens, attend_prefill in parts:
                out[tokens] = attend_prefill(layer, q[tokens])
            if attend_decodes:
                out[decode_tokens] = attend_decodes(layer, q[decode_tokens])
            return out

        return attend

    def plan_decode(self, batch: FlatBatch, rows: NDArray[np.intp]) -> AttendRows:
        """The attention of these rows of one token each: q [len(rows), num_heads, head_dim] to the same shape."""
        groups = [
            (_index(group, batch), self._plan_decode_group(batch, rows[group]))
            for group in _groups_of_like_length(batch.context_lens[rows])
        ]

        def attend(layer: int, q: Tensor) -> Tensor:
            out = torch.empty_like(q)
            for index, attend_group in groups:
                out[index] = attend_group(layer, q[index])
            return out

        return attend

    def _plan_decode_group(self, batch: FlatBatch, rows: NDArray[np.intp]) -> AttendRows:
        width = -(-int(batch.context_lens[rows].max()) // self.kv_cache.block_size)
        tables = batch.block_tables[_index(rows, batch), :width].long()
        lengths = _index(batch.context_lens[rows], batch)[:, None]
        position = torch.arange(width * self.kv_cache.block_size, device=tables.device)
        written = position < lengths

        def gather(cache: Tensor) -> Tensor:
            padded = cache[tables].flatten(1, 2)
            # What lies in slots of nobody may be NaN, and a weight of 0 does not remove that.
            padded.masked_fill_(~written[..., None, None], 0)
            return padded.transpose(1, 2)

        def attend(layer: int, q: Tensor) -> Tensor:
            visible = written
            window = self.shape.sliding_window_of(layer)
            if window is not None:
                visible = written & (position >= lengths - window)
            k, v = gather(self.kv_cache.k[layer]), gather(self.kv_cache.v[layer])
            return self._sdpa(q[:, :, None], k, v, mask=visible[:, None, None])[:, :, 0]

        return attend

    def _plan_prefill(self, batch: FlatBatch, row: int) -> AttendRows:
        num_queries, num_keys = int(batch.query_lens[row]), int(batch.context_lens[row])
        block_ids = batch.block_tables[row, : -(-num_keys // self.kv_cache.block_size)]
        masks: dict[int | None, Tensor | None] = {}

        def attend(layer: int, q: Tensor) -> Tensor:
            window = self.shape.sliding_window_of(layer)
            if window not in masks:
                masks[window] = _causal_mask(num_queries, num_keys, window, q)
            k, v = self.kv_cache.gather(layer, block_ids, num_keys)
            q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
            return self._sdpa(q, k, v, masks[window])[0].transpose(0, 1)

        return attend

    def _sdpa(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """q [batch, num_heads, queries, head_dim], k and v [batch, num_kv_heads, keys, head_dim]; None is causal."""
        grouped = self.shape.num_heads != self.shape.num_kv_heads
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.scale, enable_gqa=grouped
        )


def _index(values: NDArray[np.generic], batch: FlatBatch) -> Tensor:
    """Host numbers as an int64 tensor on the batch's device."""
    return torch.from_numpy(values).to(batch.input_ids)


def _causal_mask(num_queries: int, num_keys: int, window: int | None, q: Tensor) -> Tensor | None:
    """What to add to the scores of the last queries of a request: 0 or −inf, [num_queries, num_keys].

    None where plain causal attention says the same: it needs no mask and skips half of the work.
    """
    if num_queries == num_keys and (window is None or window >= num_keys):
        return None
    key = torch.arange(num_keys, device=q.device)
    query = key[-num_queries:, None]
    hidden = key > query
    if window is not None:
        hidden |= key <= query - window
    return torch.zeros(hidden.shape, dtype=q.dtype, device=q.device).masked_fill_(hidden, float("-inf"))


def _groups_of_like_length(lengths: NDArray[np.int32]) -> Iterator[NDArray[np.intp]]:
    """Indices of rows, longest first, cut so that a group padded to its longest stays in the bound."""
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        size = max(1, MAX_GATHERED_TOKENS // int(lengths[order[0]]))
        yield order[:size]
        order = order[size:]
