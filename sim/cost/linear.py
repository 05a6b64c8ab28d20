"""The linear cost model, and the yardstick under which simulation speed is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, Self

from sim.cost.base import StepShape, round_ns
from sim.spec import build, require_non_negative

# Sums are taken in integers of 1e-18 s: exact, equal on every machine, and fine enough for a coefficient per
# context token, which lies well under a nanosecond.
_PER_SECOND: Final = 10**18
_PER_NS: Final = 10**9
_HALF_NS: Final = _PER_NS // 2


@dataclass(frozen=True)
class LinearCostModel:
    """step = base_s + per_token_s·tokens + per_seq_s·sequences + per_context_token_s·context, half up to 1 ns.

    Sequences are the rows of the step; context is `decode_context_tokens + prefill_context_tokens`, that is
    every KV entry that the step's attention reads. Swapping adds per_swapped_block_s for each block, of the copies
    out and in the larger number. The gap after a step is gap_s + gap_per_seq_s·sequences.
    All coefficients are seconds, finite and at least 0.
    """

    base_s: float
    per_token_s: float
    per_seq_s: float
    per_context_token_s: float
    gap_s: float = 0.0
    gap_per_seq_s: float = 0.0
    per_swapped_block_s: float = 0.0
    _scaled: tuple[int, int, int, int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_non_negative(self, *(name for name in self.__dataclass_fields__ if name != "_scaled"))
        coefficients = (
            self.base_s,
            self.per_token_s,
            self.per_seq_s,
            self.per_context_token_s,
            self.per_swapped_block_s,
        )
        base, *rest = (_scale(value) for value in coefficients)
        object.__setattr__(self, "_scaled", (base + _HALF_NS, *rest))

    def step_ns(self, batch: StepShape) -> int:
        base, per_token, per_seq, per_context, per_swapped = self._scaled
        total = base + per_token * batch.num_tokens
        if per_seq:
            total += per_seq * (batch.decode_seqs + batch.prefill_seqs)
        if per_context:
            total += per_context * (batch.decode_context_tokens + batch.prefill_context_tokens)
        if per_swapped:
            total += per_swapped * max(batch.swapped_out_blocks, batch.swapped_in_blocks)
        return total // _PER_NS or 1

    def gap_ns(self, batch: StepShape) -> int:
        if not self.gap_per_seq_s:
            return round_ns(self.gap_s * 1e9)
        return round_ns((self.gap_s + self.gap_per_seq_s * (batch.decode_seqs + batch.prefill_seqs)) * 1e9)

    def breakdown(self, batch: StepShape) -> dict[str, float]:
        context = batch.decode_context_tokens + batch.prefill_context_tokens
        return {
            "base": self.base_s,
            "tokens": self.per_token_s * batch.num_tokens,
            "sequences": self.per_seq_s * (batch.decode_seqs + batch.prefill_seqs),
            "context": self.per_context_token_s * context,
            "swap": self.per_swapped_block_s * max(batch.swapped_out_blocks, batch.swapped_in_blocks),
        }

    def describe(self) -> dict[str, Any]:
        return {"kind": "linear", **{key: value for key, value in asdict(self).items() if key != "_scaled"}}

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any], source: str) -> Self:
        return build(cls, spec, source)


def _scale(seconds: float) -> int:
    # By way of the shortest decimal text, so that 5e-5 means exactly 50,000 ns and not its binary neighbour.
    return round(Decimal(repr(float(seconds))) * _PER_SECOND)


YARDSTICK: Final = LinearCostModel(base_s=0.020, per_token_s=5e-5, per_seq_s=0.0, per_context_token_s=0.0)

YARDSTICK_ENGINE_OPTIONS: Final[Mapping[str, int | bool]] = MappingProxyType(
    {
        "block_size": 16,
        "num_gpu_blocks": 1_000_000,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 256,
        "enable_prefix_caching": False,
    }
)
"""What `--cost-model yardstick` sets besides the step time, so that everybody measures the same work."""
