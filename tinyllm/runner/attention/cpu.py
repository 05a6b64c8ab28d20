"""Attention for the CPU: kernels of our own that read the paged cache in place."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from tinyllm.runner.attention.base import Attend, AttentionShape
from tinyllm.runner.attention.sdpa import SDPAAttention
from tinyllm.runner.batch import FlatBatch
from tinyllm.runner.kv_cache import KVCache

try:
    from tinyllm.models.panels import use_threads
    from tinyllm.runner.attention.compiled import StepAttention
    from tinyllm.runner.attention.panel_cache import panel_cache, store
except ImportError:
    panel_cache = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)


class CPUAttention(SDPAAttention):
    """Compiled, in float32, for blocks and heads of whole panels; `SDPAAttention` for others, or without numba."""

    def __init__(self, kv_cache: KVCache, shape: AttentionShape) -> None:
        super().__init__(kv_cache, shape)
        self._cache = panel_cache(kv_cache, shape) if panel_cache is not None else None
        if self._cache is None:
            logger.warning(
                "attention runs without its CPU kernels: they need numba, float32 on the CPU, and --block-size and "
                "head_dim in multiples of 16"
            )

    def prepare(self, batch: FlatBatch) -> Attend:
        if self._cache is None:
            return super().prepare(batch)
        keys, values = self._cache
        step, slots = StepAttention.of(batch, self.shape), batch.slot_mapping.numpy()

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            use_threads(torch.get_num_threads())
            out = torch.empty(q.shape)
            store(k.contiguous().numpy(), v.contiguous().numpy(), slots, keys[layer], values[layer])
            window = self.shape.sliding_window_of(layer)
            step.attend(q.contiguous().numpy(), (keys[layer], values[layer]), window, out.numpy())
            return out

        return attend
