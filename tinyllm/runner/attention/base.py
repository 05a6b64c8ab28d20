"""The interface of an attention backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from tinyllm.runner.batch import FlatBatch
from tinyllm.runner.kv_cache import KVCache, KVShape


class AttentionShape(KVShape, Protocol):
    """The part of a model's configuration that attention reads."""

    @property
    def num_heads(self) -> int: ...
    def sliding_window_of(self, layer: int, /) -> int | None:
        """How many latest tokens, its own included, a query of this layer sees; None is all."""


Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""`attend(layer, q, k, v)` of q [num_tokens, num_heads, head_dim], k and v [num_tokens, num_kv_heads, head_dim]
gives [num_tokens, num_heads, head_dim]: what a model calls once a layer (`tinyllm.models.base`)."""


class AttentionBackend(ABC):
    """Causal attention of a flattened batch over a paged KV cache.

    A backend keeps nothing from step to step. `prepare` plans one step (masks, indices) and returns the
    function that the model calls once a layer: it first stores k and v of the new tokens in the cache, then
    lets every query see the tokens of its own request up to and including itself, at scale head_dim**-0.5,
    no further back than the layer's sliding window.
    """

    def __init__(self, kv_cache: KVCache, shape: AttentionShape) -> None:
        self.kv_cache = kv_cache
        self.shape = shape
        self.scale = shape.head_dim**-0.5

    @abstractmethod
    def prepare(self, batch: FlatBatch) -> Attend:
        """The attention of one step."""
