"""The flattened batch: all tokens of a step in one row, whichever request and phase they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinyllm.policy.batch import ScheduledBatch
from tinyllm.runner.request import RunnerRequest


class FlatBatch(NamedTuple):
    """One step's work as arrays. Row i has p = query_lens[i] new tokens and context_lens[i] tokens in all.

    The tensors lie on the model's device; the NumPy arrays on the host, for backends that plan by row.

    Attributes:
        input_ids: int64 [num_tokens], rows one after the other in scheduling order.
        positions: int64 [num_tokens], of each token in its request, from 0.
        slot_mapping: int64 [num_tokens], where each token's key and value go: block_id * block_size + offset.
        block_tables: int32 [rows, max_blocks], block ids in token order, padded with 0.
        logits_rows: int64 [num_sampling_rows], the flat index of each sampling row's last token.
        query_start: int32 [rows + 1], the flat index of each row's first token, then num_tokens.
        query_lens: int32 [rows], p.
        context_lens: int32 [rows], tokens that are in the KV cache after the step, the new ones included.
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    logits_rows: Tensor
    query_start: NDArray[np.int32]
    query_lens: NDArray[np.int32]
    context_lens: NDArray[np.int32]

    @classmethod
    def build(
        cls,
        batch: ScheduledBatch,
        requests: Mapping[str, RunnerRequest],
        block_size: int,
        device: torch.device,
    ) -> FlatBatch:
        """Flatten a scheduled batch.

        Raises:
            ValueError: a row holds too few blocks, or tokens are scheduled that nobody has sampled yet.
        """
        num_rows = len(batch.requests)
        query_lens = np.fromiter(batch.num_scheduled_tokens, np.int32, num_rows)
        computed = np.fromiter((r.num_computed_tokens for r in batch.requests), np.int32, num_rows)
        context_lens = computed + query_lens
        query_start = np.zeros(num_rows + 1, np.int32)
        np.cumsum(query_lens, out=query_start[1:])
        block_tables = _pad_block_tables([r.block_ids for r in batch.requests], context_lens, block_size)

        row_of_token = np.repeat(np.arange(num_rows), query_lens)
        positions = np.arange(query_start[-1]) - (query_start[:-1] - computed)[row_of_token]
        slots = block_tables[row_of_token, positions // block_size].astype(np.int64) * block_size
        slots += positions % block_size
        rows = zip(batch.requests, computed.tolist(), context_lens.tolist(), strict=True)
        input_ids = np.concatenate([requests[r.request_id].token_ids[start:end] for r, start, end in rows])
        if len(input_ids) != len(positions):
            raise ValueError("the batch schedules tokens that are neither in a prompt nor sampled yet")
        samples = np.fromiter(batch.samples, np.bool_, num_rows)

        def to_device(array: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(array).to(device)

        return cls(
            input_ids=to_device(input_ids),
            positions=to_device(positions),
            slot_mapping=to_device(slots),
            block_tables=to_device(block_tables),
            logits_rows=to_device(query_start[1:][samples].astype(np.int64) - 1),
            query_start=query_start,
            query_lens=query_lens,
            context_lens=context_lens,
        )


def _pad_block_tables(
    tables: list[list[int]], context_lens: NDArray[np.int32], block_size: int
) -> NDArray[np.int32]:
    """Block ids int32 [rows, max_blocks], cut to what the context needs and padded with 0."""
    num_blocks = -(-context_lens // block_size)
    lengths = np.fromiter(map(len, tables), np.int32, len(tables))
    if (lengths < num_blocks).any():
        row = int(np.argmax(lengths < num_blocks))
        raise ValueError(
            f"row {row} of the batch has {lengths[row]} blocks of {block_size} for {context_lens[row]} tokens"
        )
    width = int(num_blocks.max())
    padded = np.zeros((len(tables), width), np.int32)
    taken = np.minimum(lengths, width)
    flat = np.fromiter(chain.from_iterable(t[:width] for t in tables), np.int32, int(taken.sum()))
    padded[np.arange(width) < taken[:, None]] = flat
    return padded
