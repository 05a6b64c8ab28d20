"""What a cost model is: a step's integer sums in, integer nanoseconds out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, Self


class StepShape(Protocol):
    """The sums of one step that a cost model may read; `tinyllm.policy.batch.ScheduledBatch` has them all.

    With p tokens scheduled on top of x computed ones:

    Attributes:
        num_tokens: Σ p over all rows (M, the rows of the GEMMs).
        num_sampled: rows that sample a token (rows of the lm_head GEMM).
        decode_seqs, decode_context_tokens: rows in phase decode, and Σ (x + 1) over them.
        prefill_seqs, prefill_tokens: rows in phase prefill, and Σ p over them.
        prefill_attention_pairs: Σ p·x + p(p + 1)/2 over the prefill rows.
        prefill_context_tokens: Σ (x + p) over the prefill rows.
        swapped_out_blocks, swapped_in_blocks: KV blocks copied to host memory and back before the step. The link is
            full duplex: the larger of the two counts.
    """

    @property
    def num_tokens(self) -> int: ...
    @property
    def num_sampled(self) -> int: ...
    @property
    def decode_seqs(self) -> int: ...
    @property
    def decode_context_tokens(self) -> int: ...
    @property
    def prefill_seqs(self) -> int: ...
    @property
    def prefill_tokens(self) -> int: ...
    @property
    def prefill_attention_pairs(self) -> int: ...
    @property
    def prefill_context_tokens(self) -> int: ...
    @property
    def swapped_out_blocks(self) -> int: ...
    @property
    def swapped_in_blocks(self) -> int: ...


class StepSums(NamedTuple):
    """A `StepShape` without requests behind it: for questions asked by hand, estimators and calibration."""

    num_tokens: int
    num_sampled: int
    decode_seqs: int = 0
    decode_context_tokens: int = 0
    prefill_seqs: int = 0
    prefill_tokens: int = 0
    prefill_attention_pairs: int = 0
    prefill_context_tokens: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0

    @classmethod
    def from_rows(cls, decode: Iterable[int] = (), prefill: Iterable[tuple[int, int]] = ()) -> Self:
        """The sums of a step in which every row samples.

        Args:
            decode: context x + 1 of each decoding sequence, its new token included.
            prefill: (p, x) of each prefill row: chunk tokens and earlier context.
        """
        contexts, chunks = list(decode), list(prefill)
        prefill_tokens = sum(p for p, _ in chunks)
        return cls(
            num_tokens=len(contexts) + prefill_tokens,
            num_sampled=len(contexts) + len(chunks),
            decode_seqs=len(contexts),
            decode_context_tokens=sum(contexts),
            prefill_seqs=len(chunks),
            prefill_tokens=prefill_tokens,
            prefill_attention_pairs=sum(p * x + p * (p + 1) // 2 for p, x in chunks),
            prefill_context_tokens=sum(p + x for p, x in chunks),
        )


class CostModel(Protocol):
    """How long a step takes. Pure: the same sums give the same integer, on every call."""

    def step_ns(self, batch: StepShape) -> int:
        """From the call of `begin_step` until the step's tokens are back; nanoseconds, at least 1."""
        ...

    def gap_ns(self, batch: StepShape) -> int:
        """Host time between the end of this step and the earliest start of the next; nanoseconds, at least 0."""
        ...

    def breakdown(self, batch: StepShape) -> dict[str, float]:
        """Seconds of `step_ns` by term. Their sum is `step_ns` up to its rounding to whole nanoseconds."""
        ...

    def describe(self) -> dict[str, Any]:
        """A JSON-able record with its `kind`; `sim.cost.from_dict(model.describe()) == model`."""
        ...

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any], source: str) -> Self:
        """The model that `spec`, less its `kind`, describes. Errors (InputError) name `source` and the key."""
        ...


def round_ns(nanoseconds: float) -> int:
    """Whole nanoseconds, half up."""
    return int(nanoseconds + 0.5)
