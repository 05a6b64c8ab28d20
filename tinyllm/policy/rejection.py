"""Early rejection: requests that can't or won't get their first token in time are turned away, not served late."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.estimate import StepEstimate
from tinyllm.policy.request import Request, RequestState


class EarlyRejection:
    """Turns away what misses its first-token deadline (Mooncake's early rejection, Qin et al., FAST 2025).

    `expired` drops a request that still waits when its deadline has passed; one that runs by then is served.
    `predicted` also refuses one on its arrival if its first token is believed to come late. Requests without a
    deadline, and those that already have their first token, are never touched.

    Args:
        estimate: the belief of a step's time; None for `expired` alone.
    """

    def __init__(self, config: SchedulerConfig, estimate: StepEstimate | None) -> None:
        self._budget = config.max_num_batched_tokens
        self._estimate = estimate
        self._due: list[tuple[int, int, Request]] = []

    def refusal(self, request: Request, unfinished: Iterable[Request], now: int) -> str | None:
        """Why a request is turned away on its arrival, or None."""
        deadline = request.ttft_deadline
        if self._estimate is None or deadline is None:
            return None
        served = (other for other in unfinished if not _is_expired(other, now))
        expected = now + self._first_token_ns(self._estimate, request, served)
        if expected <= deadline:
            return None
        late = (expected - deadline) / 1e9
        return f"its first token is expected {late:.3g} s after its deadline (early rejection)"

    def watch(self, request: Request) -> None:
        """A request was accepted: remember its deadline."""
        if request.ttft_deadline is not None:
            heappush(self._due, (request.ttft_deadline, request.index, request))

    def expired(self, now: int) -> list[Request]:
        """The requests that wait without a token although their deadline has passed, each told once."""
        late = []
        while self._due and self._due[0][0] < now:
            request = heappop(self._due)[2]
            if _is_expired(request, now):
                late.append(request)
        return late

    def num_expired(self, now: int) -> int:
        """How many requests `expired` would tell."""
        return sum(due < now and _is_expired(request, now) for due, _, request in self._due)

    def _first_token_ns(self, estimate: StepEstimate, request: Request, others: Iterable[Request]) -> int:
        """Steps that prefill all that is to be prefilled, this prompt last, at full budget beside the requests
        that decode now. It knows nothing of seats and blocks, of prefix hits and of the policy's order."""
        backlog, num_seqs, context_tokens = request.num_prompt_tokens, 1, 0
        for other in others:
            if other.is_decoding:
                num_seqs += 1
                context_tokens += other.num_tokens
            else:
                backlog += other.num_tokens - other.num_computed_tokens
        per_step = max(1, self._budget - num_seqs + 1)
        full_steps, rest = divmod(backlog, per_step)
        full_ns = estimate.step_ns(self._budget, num_seqs, context_tokens)
        last_ns = estimate.step_ns(rest + num_seqs - 1, num_seqs, context_tokens) if rest else 0
        return full_steps * full_ns + last_ns


def _is_expired(request: Request, now: int) -> bool:
    """Whether a request waits without a token past its deadline: it is about to be dropped."""
    waits = request.state in (RequestState.WAITING, RequestState.PREEMPTED)
    late = request.ttft_deadline is not None and request.ttft_deadline < now
    return waits and late and request.num_output_tokens == 0
