"""Attention written to be read: a loop over the rows, one formula each. Every other backend is tested against it."""

from __future__ import annotations

import torch
from torch import Tensor

from tinyllm.runner.attention.base import Attend, AttentionBackend
from tinyllm.runner.batch import FlatBatch


class ReferenceAttention(AttentionBackend):
    """softmax(q kᵀ / √head_dim + mask) v in float32, row by row, over keys gathered block by block."""

    def prepare(self, batch: FlatBatch) -> Attend:
        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.kv_cache.write(layer, batch.slot_mapping, k, v)
            out = torch.empty_like(q)
            for row, num_tokens in enumerate(batch.context_lens.tolist()):
                start, end = batch.query_start[row : row + 2].tolist()
                keys, values = self._gather(layer, batch.block_tables[row].tolist(), num_tokens)
                out[start:end] = self._attend_row(layer, q[start:end], keys, values)
            return out

        return attend

    def _gather(self, layer: int, block_ids: list[int], num_tokens: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a row's tokens, in token order: each [num_tokens, num_kv_heads, head_dim]."""
        k = torch.cat([self.kv_cache.k[layer, block_id] for block_id in block_ids])
        v = torch.cat([self.kv_cache.v[layer, block_id] for block_id in block_ids])
        return k[:num_tokens], v[:num_tokens]

    def _attend_row(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The last len(q) tokens of a request see all of it: [queries, num_heads, head_dim]."""
        group = self.shape.num_heads // self.shape.num_kv_heads
        k = k.repeat_interleave(group, dim=1).float()
        v = v.repeat_interleave(group, dim=1).float()
        key_position = torch.arange(len(k), device=q.device)
        query_position = key_position[-len(q) :, None]
        visible = key_position <= query_position
        window = self.shape.sliding_window_of(layer)
        if window is not None:
            visible &= key_position > query_position - window
        scores = torch.einsum("qhd,khd->hqk", q.float(), k) * self.scale
        weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, v).to(q.dtype)
