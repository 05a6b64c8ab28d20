"""Dynamic chunking: prefill only as many tokens in a step as the deadlines of the decoding requests allow."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllm.policy.estimate import StepEstimate
from tinyllm.policy.request import Request


class DeadlineChunks:
    """Sizes the prefill of a step so that it ends by the next token's deadline of every decoding request, as
    far as the estimate knows (in the manner of QoServe, Goel et al. 2025, and Sarathi-Serve's stall-free batches,
    OSDI 2024).

    Output token n of a request (from 0) is due n · `tpot_ns` after its first: who is ahead of that has slack, and
    prefill may use it.

    Args:
        estimate: the belief of a step's time.
        tpot_ns: from token to token.
        least_tokens: prefilled in any case, so that late requests can't starve the waiting ones.
    """

    def __init__(self, estimate: StepEstimate, tpot_ns: int, least_tokens: int) -> None:
        self._estimate = estimate
        self._tpot_ns = tpot_ns
        self._least_tokens = least_tokens

    def prefill_tokens(self, running: Sequence[Request], now: int) -> int | None:
        """The most prompt tokens of a step that begins now; None for no limit, where nobody decodes.

        A decoding request that the step leaves out counts as well: its context is the price of caution.
        """
        due: int | None = None
        num_seqs = context_tokens = 0
        for request in running:
            if request.is_decoding and request.first_token_time is not None:
                num_seqs += 1
                context_tokens += request.num_tokens
                next_due = request.first_token_time + request.num_output_tokens * self._tpot_ns
                due = next_due if due is None or next_due < due else due
        if due is None:
            return None
        # One row more: that of the prefill itself.
        tokens = self._estimate.most_tokens(due - now, num_seqs + 1, context_tokens) - num_seqs
        return max(tokens, self._least_tokens)
