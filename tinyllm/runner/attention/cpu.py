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
    from tinyllm.runner.attention import paged_decode
except ImportError:
    paged_decode = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)


class CPUAttention(SDPAAttention):
    """Prefill as in `SDPAAttention`; decode without gathering, in float32 and where numba is installed."""

    def __init__(self, kv_cache: KVCache, shape: AttentionShape) -> None:
        super().__init__(kv_cache, shape)
        self._uses_kernel = (
            paged_decode is not None and kv_cache.k.device.type == "cpu" and kv_cache.k.dtype == torch.float32
        )
        if not self._uses_kernel:
            logger.warning(
                "decode attention runs without its CPU kernel: it needs numba, and float32 on the CPU"
            )
            return
        paged_decode.compile_now()
        self._k = [layer.numpy() for layer in kv_cache.k]
        self._v = [layer.numpy() for layer in kv_cache.v]

    def plan_decode(self, batch: FlatBatch, rows: NDArray[np.intp]) -> AttendRows:
        if not self._uses_kernel:
            return super().plan_decode(batch, rows)
        tables = batch.block_tables.numpy()[rows]
        lengths = batch.context_lens[rows]
        longest = int(lengths.max())

        def attend(layer: int, q: Tensor) -> Tensor:
            out = torch.empty(q.shape, dtype=q.dtype)
            window = self.shape.sliding_window_of(layer)
            paged_decode.attend(
                q.contiguous().numpy(),
                self._k[layer],
                self._v[layer],
                tables,
                lengths,
                window or longest,
                self.scale,
                out.numpy(),
                torch.get_num_threads(),
            )
            return out

        return attend
