"""What passes between the scheduler and whoever executes a step: the batch on the way out, outcomes back."""

from __future__ import annotations

from typing import Final, NamedTuple

from tinyllm.policy.request import BlockHash, FinishReason, Request


class Outcome(NamedTuple):
    """What one sampling row of a step led to, as far as the scheduler may know.

    Attributes:
        num_sampled: output tokens gained (1 in an engine without speculative decoding).
        finish_reason: why the request ended with this token, or None.
        new_block_hashes: hashes of blocks that these tokens filled up (prefix cache only).
        predicted_output_tokens: a predictor's new guess of the whole output length, or None to keep the old.
    """

    num_sampled: int
    finish_reason: FinishReason | None = None
    new_block_hashes: tuple[BlockHash, ...] = ()
    predicted_output_tokens: int | None = None


ONE_TOKEN: Final = Outcome(1)
"""The outcome of almost every row: a token, and the request goes on. Shared: cheap to make and to recognise."""


class ScheduledBatch:
    """The work of one engine step. Rows are in scheduling order; the lists run in parallel.

    The sums are those that cost models and the log need, kept here because the scheduler
    touches every row once anyway. With p tokens scheduled on top of x computed ones:

    Attributes:
        requests: the scheduled requests, one a row.
        num_scheduled_tokens: tokens of each row, p ≥ 1.
        partial_rows: indices of the rows that stop short of their last known token. They sample nothing;
            every other row samples one token.
        admitted: requests taken from the waiting queue in this step, resumed ones included.
        preempted: requests that lost their blocks in this step.
        num_tokens: Σ p over all rows.
        num_sampled: rows that sample.
        prefill_rows: indices of the rows in phase prefill; every other row decodes (one token after the
            first sample since the last admission).
        decode_seqs, decode_context_tokens: rows in phase decode, and Σ (x + 1) over them.
        prefill_seqs, prefill_tokens: rows in phase prefill, and Σ p over them.
        prefill_attention_pairs: Σ p·x + p(p + 1)/2 over the prefill rows (query-key pairs of causal attention).
        prefill_context_tokens: Σ (x + p) over the prefill rows (KV entries read).
        swapped_out_blocks, swapped_in_blocks: KV blocks copied to host memory and back before this step.
    """

    __slots__ = (
        "admitted",
        "decode_context_tokens",
        "decode_seqs",
        "num_sampled",
        "num_scheduled_tokens",
        "num_tokens",
        "partial_rows",
        "preempted",
        "prefill_attention_pairs",
        "prefill_context_tokens",
        "prefill_rows",
        "prefill_seqs",
        "prefill_tokens",
        "requests",
        "swapped_in_blocks",
        "swapped_out_blocks",
    )

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.num_scheduled_tokens: list[int] = []
        self.partial_rows: list[int] = []
        self.admitted: list[Request] = []
        self.preempted: list[Request] = []
        self.num_tokens = 0
        self.num_sampled = 0
        self.decode_seqs = 0
        self.decode_context_tokens = 0
        self.prefill_rows: list[int] = []
        self.prefill_seqs = 0
        self.prefill_tokens = 0
        self.prefill_attention_pairs = 0
        self.prefill_context_tokens = 0
        self.swapped_out_blocks = 0
        self.swapped_in_blocks = 0

    @property
    def samples(self) -> list[bool]:
        """For each row, whether it samples."""
        samples = [True] * len(self.requests)
        for row in self.partial_rows:
            samples[row] = False
        return samples
