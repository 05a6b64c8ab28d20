"""The shape of a decoder: what a cost model and a memory budget need to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sim.spec import require_positive
from tinyllm.errors import InputError

DTYPE_BYTES: Final[dict[str, int]] = {"bfloat16": 2, "float16": 2, "float32": 4}


def dtype_bytes(dtype: str) -> int:
    """Bytes of an element. Raises InputError, listing the names, for an unknown dtype."""
    if dtype not in DTYPE_BYTES:
        raise InputError(f"unknown dtype {dtype!r}; known ones are {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


@dataclass(frozen=True)
class ModelShape:
    """A dense decoder of the LLaMA, Qwen2, Qwen3 or GPT-2 kind.

    Attributes:
        gated_mlp: three MLP matrices (gate, up, down) in place of two.
        qkv_bias, o_bias, mlp_bias, norm_bias: which of these have bias vectors.
        qk_norm: a norm of head_dim weights on queries and on keys, in every layer (Qwen3).
        learned_positions: a position embedding of max_position_embeddings rows (GPT-2).
    """

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    gated_mlp: bool = True
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    qk_norm: bool = False
    learned_positions: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads")
        require_positive(self, "head_dim", "vocab_size", "max_position_embeddings")
        if self.num_heads % self.num_kv_heads:
            raise InputError(f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}")

    @property
    def num_parameters(self) -> int:
        """Elements of all distinct weight tensors; a tied head counts once."""
        embeddings = self.vocab_size * (1 if self.tie_word_embeddings else 2)
        if self.learned_positions:
            embeddings += self.max_position_embeddings
        norm = self.hidden_size * (2 if self.norm_bias else 1)
        return embeddings * self.hidden_size + norm + self.num_layers * (self._layer_parameters + 2 * norm)

    @property
    def _layer_parameters(self) -> int:
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        up = (2 if self.gated_mlp else 1) * self.intermediate_size
        weights = self.hidden_size * (q + 2 * kv + q + up + self.intermediate_size)
        biases = (q + 2 * kv) * self.qkv_bias + self.hidden_size * self.o_bias
        biases += (up + self.hidden_size) * self.mlp_bias
        return weights + biases + 2 * self.head_dim * self.qk_norm

    def weight_bytes(self, dtype: str) -> int:
        return self.num_parameters * dtype_bytes(dtype)

    def kv_bytes_per_token(self, dtype: str, tp: int = 1) -> int:
        """Bytes of K and V of one token over all layers, on one of `tp` GPUs."""
        return 2 * self.num_layers * self.kv_heads_per_gpu(tp) * self.head_dim * dtype_bytes(dtype)

    def kv_heads_per_gpu(self, tp: int) -> int:
        """KV heads that one of `tp` GPUs keeps; with more GPUs than heads each keeps a copy of one."""
        return max(1, self.num_kv_heads // tp)

    def check_tp(self, tp: int) -> None:
        """Raises InputError unless heads, KV heads and MLP divide among `tp` GPUs, as vLLM requires."""
        if tp < 1:
            raise InputError(f"tensor parallel degree is {tp}; it must be at least 1")
        if self.num_heads % tp or self.intermediate_size % tp:
            raise InputError(
                f"{self.name}: {self.num_heads} heads and an MLP of {self.intermediate_size} do not divide "
                f"among {tp} GPUs; choose a tensor parallel degree that divides both"
            )
        if self.num_kv_heads % tp and tp % self.num_kv_heads:
            raise InputError(
                f"{self.name}: {self.num_kv_heads} KV heads neither divide among {tp} GPUs nor are a divisor "
                "of them; choose another tensor parallel degree"
            )
