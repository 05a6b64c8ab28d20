"""The interface of a decoder family: what the runner calls, and what the loader fills."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from typing import ClassVar, Final, Protocol

import torch
from torch import Tensor, nn

from tinyllm.models.config import ConfigFile, ModelConfig
from tinyllm.models.layers import Embedding, Linear, project_to_float32
from tinyllm.models.matmul import can_pack, pack

logger = logging.getLogger(__name__)

_LAYER_NUMBER: Final = re.compile(r"\d+")


class Attend(Protocol):
    """Causal attention of one layer over the flattened batch; it owns the KV cache and the batch's layout."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend from every token to itself and the tokens before it in its own sequence.

        Args:
            layer: index of the layer, from 0; `ModelConfig.sliding_window_of(layer)` is its window.
            q: `[num_tokens, num_heads, head_dim]`, rotary embedding already applied.
            k: `[num_tokens, num_kv_heads, head_dim]`, rotary embedding already applied.
            v: `[num_tokens, num_kv_heads, head_dim]`.

        Any of the three may be a strided view into the fused projection. The scale is `head_dim ** -0.5`.

        Returns:
            `[num_tokens, num_heads, head_dim]`.
        """
        ...


class DecoderModel(nn.Module, ABC):
    """A decoder-only language model over one flattened batch of tokens.

    A family is a subclass in a file of its own and a line in `registry.ARCHITECTURES`. Its parameters are
    allocated empty on the current default device; `loader.load_model` fills them through `checkpoint_views`.

    Attributes:
        config: the sizes and flags of this checkpoint.
        dtype: type of the weights and activations; norms and logits are computed in float32 under any.
        base_prefix: what Transformers puts before the names of the decoder's tensors; optional in a file.
        embedding_name: checkpoint name of the token embedding, to which a tied head refers.
    """

    base_prefix: ClassVar[str]
    embedding_name: ClassVar[str]
    embed_tokens: Embedding
    lm_head: Linear

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.lm_head = Linear(
            config.hidden_size,
            config.vocab_size,
            bias=False,
            dtype=dtype,
            allocate=not config.tie_word_embeddings,
        )
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    @classmethod
    @abstractmethod
    def parse_config(cls, file: ConfigFile) -> ModelConfig:
        """Read `config.json` in the names of this family; refuse by name whatever the family cannot honour."""

    @abstractmethod
    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Run the decoder.

        Args:
            input_ids: `[num_tokens]` int64.
            positions: `[num_tokens]` int64, each token's place in its own sequence, from 0.
            attend: attention over the flattened batch, called once a layer.

        Returns:
            The normed hidden states, `[num_tokens, hidden_size]`, for `compute_logits`.
        """

    @abstractmethod
    def checkpoint_views(self) -> dict[str, Tensor]:
        """Where each tensor of a checkpoint belongs: its name → the view of a parameter to copy it into.

        Fused matrices appear as slices, transposed layouts as transposed views, so that every name of a complete
        checkpoint is here once and the loader needs to know nothing about the family.
        """

    def pack(self, is_compact: bool = True) -> None:
        """Lay the weights out as the fastest products of this machine read them; call it once they are filled.

        Nothing but `checkpoint_views` is affected: it has no views of weights laid out so.

        Args:
            is_compact: keep weights in fewer bytes than float32 where that changes no bit of them.
        """
        # The same matrix of all layers lies together, so that compiled code can take them as one array.
        named = sorted(self.named_modules(), key=lambda item: _LAYER_NUMBER.sub("", item[0]))
        linears = [module for _, module in named if isinstance(module, Linear)]
        if not all(can_pack(linear.weight) for linear in linears):
            return
        for weights in (
            [linear.weight for linear in linears if linear is not self.lm_head],
            [self.lm_head.weight],
        ):
            stored_as = pack(weights, is_compact)
            logger.info("%d weights are kept as %s", len(weights), stored_as.name)

    @classmethod
    def ignores(cls, name: str) -> bool:
        """Whether the tensor holds no weight (a saved mask or frequency table) and is passed over in silence."""
        return name.endswith(".rotary_emb.inv_freq")

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Project hidden states `[n, hidden_size]` to the vocabulary: `[n, vocab_size]`, float32."""
        return project_to_float32(hidden, self.lm_head)
