"""Attention on the CPU: decode rows by a compiled kernel that reads the paged cache in place."""

from __future__ import annotations

import logging

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinyllm.runner.attention.base import AttentionShape
from tinyllm.runner.attention.sdpa import AttendRows, SDPAAttention
from tinyllm.runner.batch import FlatBatch
from tinyllm.runner.kv_cache import KVCache

try:
    from tinyllm.runner.attention.paged_decode import PagedDecode
except ImportError:
    PagedDecode = None  # type: ignore[assignment, misc]

logger = logging.getLogger(__name__)


class CPUAttention(SDPAAttention):
    """Prefill as in `SDPAAttention`; decode without gathering, in float32 and where numba is installed."""

    def __init__(self, kv_cache: KVCache, shape: AttentionShape) -> None:
        super().__init__(kv_cache, shape)
        self._decode: PagedDecode | None = None
        if PagedDecode is None or not kv_cache.k.is_cpu or kv_cache.k.dtype != torch.float32:
            logger.warning(
                "decode attention runs without its CPU kernel: it needs numba, and float32 on the CPU"
            )
            return
        self._decode = PagedDecode(shape.num_heads, shape.num_kv_heads, shape.head_dim)
        self._layers = [(k.numpy(), v.numpy()) for k, v in zip(kv_cache.k, kv_cache.v, strict=True)]

    def plan_decode(self, batch: FlatBatch, rows: NDArray[np.intp]) -> AttendRows:
        decode = self._decode
        if decode is None:
            return super().plan_decode(batch, rows)
        tables, lengths = batch.block_tables.numpy()[rows], batch.context_lens[rows]
        longest = int(lengths.max())
        tokens = np.arange(len(rows), dtype=np.int32)

        def attend(layer: int, q: Tensor) -> Tensor:
            out = torch.empty(q.shape)
            window = self.shape.sliding_window_of(layer) or longest
            k, v = self._layers[layer]
            # torch's own number of threads, so that one setting governs both.
            decode(
                q.contiguous().numpy(), k, v, tokens, tables, lengths, window, out.numpy(),
                torch.get_num_threads(),
            )  # fmt: skip
            return out

        return attend
