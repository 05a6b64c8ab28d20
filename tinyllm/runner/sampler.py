"""From the logits of a step to its tokens, all rows at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tinyllm.engine.runner import StepResult
from tinyllm.runner.logits import (
    apply_penalties,
    forbid_stops_before_min_tokens,
    likeliest,
    mask_below_min_p,
)
from tinyllm.runner.logprobs import LogprobsRequest
from tinyllm.runner.noise import uniform
from tinyllm.runner.request import RunnerRequest


class Sampler:
    """Samples one token a row, each by the parameters of its request.

    The order is vLLM's: stop ids masked below min_tokens, penalties, argmax for greedy rows; temperature,
    min-p, top-k, top-p and a draw for the others. A draw inverts the cumulative distribution at one uniform
    number of (seed, index of the output token): it depends on the row's own logits and on nothing else.

    Args:
        eos_token_ids: what min_tokens forbids beside a request's own stop ids.
    """

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)

    def sample(self, logits: Tensor, requests: Sequence[RunnerRequest]) -> StepResult:
        """Sample from logits float32 [rows, vocab_size], one request a row; the logits are used up.

        −inf forbids a token. A row with NaN or +inf, or with nothing but −inf, gets an error and no token;
        the other rows are not touched by it.
        """
        logprobs = LogprobsRequest(logits, requests)
        forbid_stops_before_min_tokens(logits, requests, self._eos_token_ids)
        apply_penalties(logits, requests)
        greedy = _argmax(logits)
        largest = logits.gather(1, greedy[:, None])[:, 0]
        chosen = _choose(logits, greedy, largest, requests)
        errors = [_error(value) for value in largest.tolist()]
        token_ids = [
            None if error else token_id for token_id, error in zip(chosen.tolist(), errors, strict=True)
        ]
        return StepResult(token_ids, logprobs.of(chosen), errors if any(errors) else None)


def _choose(logits: Tensor, greedy: Tensor, largest: Tensor, requests: Sequence[RunnerRequest]) -> Tensor:
    """One token id of each row, greedy or drawn: int64 [rows]."""
    random_rows = [row for row, request in enumerate(requests) if not request.params.is_greedy]
    if not random_rows:
        return greedy
    drawing = [requests[row] for row in random_rows]
    if len(random_rows) == len(requests):
        return _draw(logits, largest, drawing)
    greedy[random_rows] = _draw(logits[random_rows], largest[random_rows], drawing)
    return greedy


def _argmax(logits: Tensor) -> Tensor:
    """Where each row is largest, or NaN if it is so anywhere: int64 [rows]."""
    # NumPy's is an order of magnitude faster than torch's on a CPU.
    return torch.from_numpy(logits.numpy().argmax(axis=-1)) if logits.is_cpu else logits.argmax(dim=-1)


def _draw(logits: Tensor, largest: Tensor, requests: Sequence[RunnerRequest]) -> Tensor:
    """One token id of each row, at its temperature and filters: int64 [rows]."""
    temperature = torch.tensor([r.params.temperature for r in requests], device=logits.device)
    # With the maximum at 0 neither a tiny temperature nor the exponential can overflow.
    logits = (logits - largest[:, None]) / temperature[:, None]
    logits = mask_below_min_p(logits, [r.params.min_p for r in requests])
    noise = torch.tensor(
        [uniform(r.seed, r.num_output_tokens) for r in requests], dtype=torch.float64, device=logits.device
    )
    ranked = [row for row, r in enumerate(requests) if r.params.top_k > 0 or r.params.top_p < 1]
    if not ranked:
        return _invert(logits, noise)
    params = [requests[row].params for row in ranked]
    kept, token_ids = likeliest(logits[ranked], [p.top_k for p in params], [p.top_p for p in params])
    ranks = _invert(kept, noise[ranked])
    from_ranked = token_ids.gather(1, ranks[:, None])[:, 0]
    if len(ranked) == len(requests):
        return from_ranked
    chosen = torch.empty(len(requests), dtype=torch.int64, device=logits.device)
    plain = [row for row, r in enumerate(requests) if r.params.top_k <= 0 and r.params.top_p == 1]
    chosen[ranked] = from_ranked
    chosen[plain] = _invert(logits[plain], noise[plain])
    return chosen


def _invert(logits: Tensor, noise: Tensor) -> Tensor:
    """Where the running sum of exp(logits) of a row first exceeds the share `noise` of its total: int64 [rows]."""
    cumulative = logits.exp().cumsum(dim=-1, dtype=torch.float64)
    target = noise[:, None] * cumulative[:, -1:]
    # "Exceed": a token of weight 0 adds nothing and is never the first to. The clamp is for rows of NaN.
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=logits.shape[1] - 1)


def _error(largest: float) -> str | None:
    if math.isfinite(largest):
        return None
    if largest == -math.inf:
        return "no token is left to sample: every logit is -inf"
    return "the model's logits are not finite (NaN or +inf)"
