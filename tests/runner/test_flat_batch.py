from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.policy.request import Request
from tinyllm.runner.batch import FlatBatch
from tinyllm.runner.request import RunnerRequest

CPU = torch.device("cpu")


def made(
    request_id: str, token_ids: list[int], computed: int, block_ids: list[int]
) -> tuple[Request, RunnerRequest]:
    request = Request(request_id, len(token_ids), 8)
    request.num_computed_tokens, request.block_ids = computed, block_ids
    return request, RunnerRequest(token_ids, SamplingParams(), 0)


def test_rows_lie_one_after_the_other_with_positions_and_slots_of_their_own(scheduled: Callable) -> None:
    decode, decode_tokens = made("d", [10, 11, 12, 13, 14], 4, [7, 2])
    chunk, chunk_tokens = made("c", [20, 21, 22, 23, 24, 25, 26, 27, 28], 2, [5, 0, 9])
    batch = scheduled([(decode, 1), (chunk, 4)])
    flat = FlatBatch.build(batch, {"d": decode_tokens, "c": chunk_tokens}, 4, CPU)
    assert flat.input_ids.tolist() == [14, 22, 23, 24, 25]
    assert flat.positions.tolist() == [4, 2, 3, 4, 5]
    assert flat.slot_mapping.tolist() == [8, 22, 23, 0, 1]
    assert flat.block_tables.tolist() == [[7, 2], [5, 0]]
    assert flat.logits_rows.tolist() == [0]
    assert flat.query_start.tolist() == [0, 1, 5]
    assert flat.query_lens.tolist() == [1, 4]
    assert flat.context_lens.tolist() == [5, 6]
    assert flat.input_ids.dtype == flat.positions.dtype == flat.slot_mapping.dtype == torch.int64
    assert flat.block_tables.dtype == torch.int32


def test_a_row_with_too_few_blocks_is_an_error_and_never_another_rows_block(scheduled: Callable) -> None:
    request, tokens = made("r", [1, 2, 3, 4, 5], 0, [0])
    with pytest.raises(ValueError, match="row 0 of the batch has 1 blocks of 4 for 5 tokens"):
        FlatBatch.build(scheduled([(request, 5)]), {"r": tokens}, 4, CPU)


def test_tokens_that_nobody_has_sampled_cannot_be_scheduled(scheduled: Callable) -> None:
    request, tokens = made("r", [1, 2], 1, [0])
    with pytest.raises(ValueError, match="neither in a prompt nor sampled"):
        FlatBatch.build(scheduled([(request, 3)]), {"r": tokens}, 4, CPU)


def test_appended_tokens_follow_the_prompt_however_many() -> None:
    tokens = RunnerRequest([5, 6, 7], SamplingParams(), 0)
    for token_id in range(100):
        tokens.append(token_id)
    assert tokens.token_ids.tolist() == [5, 6, 7, *range(100)]
    assert tokens.output_token_ids.tolist() == list(range(100))
    assert (tokens.num_prompt_tokens, tokens.num_output_tokens, tokens.num_tokens) == (3, 100, 103)
