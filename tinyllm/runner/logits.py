"""What sampling parameters do to logits before a token is drawn: masks, penalties, and the filters by rank.

Every function takes logits float32 [rows, vocab_size] beside one request (or one value) a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tinyllm.runner.request import RunnerRequest

_FIRST_CANDIDATES = 256
"""How many of the likeliest tokens top-p looks at before it looks at more: sorting a vocabulary is slow."""


def forbid_stops_before_min_tokens(
    logits: Tensor, requests: Sequence[RunnerRequest], eos_token_ids: Sequence[int]
) -> None:
    """Mask, in place, EOS (also under ignore_eos, as vLLM does) and the stop ids of rows short of min_tokens."""
    rows: list[int] = []
    columns: list[int] = []
    for row, request in enumerate(requests):
        if request.num_output_tokens < request.params.min_tokens:
            token_ids = (*eos_token_ids, *request.params.stop_token_ids)
            rows.extend([row] * len(token_ids))
            columns.extend(token_ids)
    if rows:
        index = torch.tensor([rows, columns], device=logits.device)
        logits[index[0], index[1]] = float("-inf")


def apply_penalties(logits: Tensor, requests: Sequence[RunnerRequest]) -> None:
    """Apply, in place, the repetition, frequency and presence penalties, in the order and meaning of vLLM."""
    rows = [row for row, request in enumerate(requests) if request.params.has_penalties]
    if not rows:
        return
    penalized = [requests[row] for row in rows]

    repeated, index, _ = _seen_tokens(rows, [r.token_ids for r in penalized], logits)
    seen = logits[index[0], index[1]]
    penalty = _column([requests[row].params.repetition_penalty for row in repeated], seen)
    logits[index[0], index[1]] = torch.where(seen > 0, seen / penalty, seen * penalty)

    repeated, index, counts = _seen_tokens(rows, [r.output_token_ids for r in penalized], logits)
    frequency = _column([requests[row].params.frequency_penalty for row in repeated], seen)
    presence = _column([requests[row].params.presence_penalty for row in repeated], seen)
    logits[index[0], index[1]] -= frequency * counts + presence


def _seen_tokens(
    rows: Sequence[int], token_ids: Sequence[np.ndarray], logits: Tensor
) -> tuple[list[int], Tensor, Tensor]:
    """The distinct (row, token id) pairs: their rows, their index [2, n] into the logits, and their counts [n]."""
    vocab_size = logits.shape[1]
    keys = np.concatenate([row * vocab_size + ids for row, ids in zip(rows, token_ids, strict=True)])
    pairs, counts = np.unique(keys, return_counts=True)
    index = np.stack(np.divmod(pairs, vocab_size))
    return index[0].tolist(), torch.from_numpy(index).to(logits.device), torch.from_numpy(counts).to(logits)


def mask_below_min_p(logits: Tensor, min_p: Sequence[float]) -> Tensor:
    """Drop tokens less likely than min_p times the likeliest, for each row; the logits have maximum 0."""
    if not any(min_p):
        return logits
    # p ≥ min_p · p_max is logit ≥ logit_max + log(min_p): no softmax needed. log 0 = −inf drops nothing.
    return logits.masked_fill(logits < _column(min_p, logits).log()[:, None], float("-inf"))


def likeliest(logits: Tensor, top_k: Sequence[int], top_p: Sequence[float]) -> tuple[Tensor, Tensor]:
    """The tokens that top-k, then top-p, leave of each row, likeliest first.

    Args:
        logits: [rows, vocab_size], maximum 0.
        top_k: of each row; 0 or less is off. Of equal logits at the limit, only as many stay as fit.
        top_p: of each row; 1 is off. The likeliest token always stays.

    Returns:
        logits [rows, n], with −inf for what is dropped, and their token ids int64 [rows, n].
    """
    vocab_size = logits.shape[1]
    limits = [min(k, vocab_size) if k > 0 else vocab_size for k in top_k]
    # Rows without top-k rarely need more than a few candidates to hold the share p of the probability.
    width = min(vocab_size, max([_FIRST_CANDIDATES, *(k for k in limits if k < vocab_size)]))
    limit, share = _column(limits, logits)[:, None], _column(top_p, logits)[:, None].double()
    total = logits.exp().sum(dim=-1, keepdim=True, dtype=torch.float64)
    while True:
        candidates, token_ids = logits.topk(width, dim=-1)
        kept = candidates.masked_fill(torch.arange(width, device=logits.device) >= limit, float("-inf"))
        mass = kept.double().exp()
        before = mass.cumsum(dim=-1) - mass
        # Top-p is a share of what top-k left.
        wanted = share * torch.where(limit < vocab_size, mass.sum(dim=-1, keepdim=True), total)
        found = (limit < vocab_size) | (mass.sum(dim=-1, keepdim=True) >= wanted)
        if width == vocab_size or bool(found.all()):
            break
        width = min(vocab_size, width * 16)
    # A token stays as long as those before it have not reached p.
    dropped = (before >= wanted) & (share < 1)
    dropped[:, 0] = False
    return kept.masked_fill(dropped, float("-inf")), token_ids


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)
