"""The scheduler: which requests compute how many tokens in the next step. No clock, no tensor, no I/O."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllm.errors import InputError
from tinyllm.policy.admission import refusal
from tinyllm.policy.base import SchedulingPolicy
from tinyllm.policy.batch import ONE_TOKEN, Outcome, ScheduledBatch
from tinyllm.policy.batching import BATCHING
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.moves import SchedulerMoves
from tinyllm.policy.rejection import EarlyRejection
from tinyllm.policy.request import FinishReason, Request, RequestState


class Scheduler(SchedulerMoves):
    """Continuous batching with chunked prefill, driven by a policy's order.

    There are no phases: a scheduled request gets `min(num_tokens − num_computed_tokens, chunk limit, budget
    left)` tokens. `schedule` builds a step in three moves (`tinyllm.policy.moves`):

    1. a preemptive policy's best waiting request takes the seat or blocks of running ones with larger keys;
    2. running requests by key; where blocks are missing, the last one not yet scheduled loses its own;
    3. waiting requests by key, if move 2 preempted nobody.

    `tinyllm.policy.batching` composes moves 2 and 3. What a step has already scheduled is never taken back.
    `update_from_output` ends the step. Requests are added and aborted only between steps.
    """

    def __init__(self, config: SchedulerConfig, policy: SchedulingPolicy) -> None:
        if policy.preemptive and config.preemption == "never":
            raise InputError(
                "--preemption never excludes a preemptive policy: choose --preemption recompute, "
                "or --policy-arg preemptive=false"
            )
        if policy.preemptive and config.batching == "static":
            raise InputError(
                "--batching static excludes a preemptive policy, whose victims nobody could replace: "
                "choose another, or --policy-arg preemptive=false"
            )
        super().__init__(config, policy)
        self._requests: dict[str, Request] = {}
        self._num_added = 0
        self._shared_chunk_limit = config.max_num_batched_tokens
        if config.enable_chunked_prefill and config.long_prefill_token_threshold:
            self._shared_chunk_limit = min(self._shared_chunk_limit, config.long_prefill_token_threshold)
        self._lone_chunk_limit = (
            self._shared_chunk_limit if config.cap_lone_prefill else config.max_num_batched_tokens
        )
        self._batching = BATCHING[config.batching]()
        self._rejection = _make_rejection(config)

    # ── between steps ────────────────────────────────────────────────────────────────────────────────

    @property
    def num_unfinished(self) -> int:
        """Requests waiting or running."""
        return len(self._requests)

    def get(self, request_id: str) -> Request | None:
        """The unfinished request with this id."""
        return self._requests.get(request_id)

    def unfinished(self) -> list[Request]:
        """All waiting and running requests, in the order in which they were added."""
        return list(self._requests.values())

    def refusal(self, request: Request, now: int) -> str | None:
        """Why this request can't be added, or None. Asking changes nothing."""
        if request.request_id in self._requests:
            return f"a request with the id {request.request_id!r} is not finished yet"
        reason = refusal(self.config, request)
        most_queued = self.config.max_queued_requests
        if reason is None and most_queued is not None and self._num_queued(now) >= most_queued:
            reason = f"{most_queued} requests wait already, max_queued_requests is reached"
        if reason is None and self._rejection is not None:
            reason = self._rejection.refusal(request, self._requests.values(), now)
        return reason

    def _num_queued(self, now: int) -> int:
        """Requests that wait, and are not about to be dropped."""
        return len(self.waiting) - (self._rejection.num_expired(now) if self._rejection else 0)

    def add_request(self, request: Request, now: int) -> str | None:
        """Let a request wait.

        Returns:
            None, or the reason for which it is refused; then nothing has changed but its own state.
        """
        reason = self.refusal(request, now)
        if reason is not None:
            # The very object that is being served may be handed in twice: it must not notice.
            if self._requests.get(request.request_id) is not request:
                request.state = RequestState.FINISHED
                request.finish_reason = FinishReason.REJECTED
            return reason
        request.index = self._num_added
        self._num_added += 1
        self._requests[request.request_id] = request
        self.policy.on_arrival(request, now)
        self.waiting.add(request, now)
        if self._rejection is not None:
            self._rejection.watch(request)
        return None

    def drop_expired(self, now: int) -> list[Request]:
        """End the requests that wait past their first-token deadline, under `early_rejection`; return them."""
        if self._rejection is None:
            return []
        expired = self._rejection.expired(now)
        for request in expired:
            self.abort(request.request_id, now, FinishReason.REJECTED)
        return expired

    def abort(self, request_id: str, now: int, reason: FinishReason = FinishReason.ABORT) -> Request | None:
        """End an unfinished request and free what it holds; None if there is no such request."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._finish(request, reason, now)
        return request

    # ── a step ───────────────────────────────────────────────────────────────────────────────────────

    def schedule(self, now: int) -> ScheduledBatch | None:
        """The next step's work, or None if nothing can run now."""
        batch = ScheduledBatch()
        alone = len(self._requests) == 1
        self.chunk_limit = self._lone_chunk_limit if alone else self._shared_chunk_limit
        self._order_running(now)
        if self.policy.preemptive:
            self._preempt_for_waiting(batch, now)
        self._prefill_limit = self._most_prefill_tokens(now)
        self._batching.compose(self, batch, now)
        return batch if batch.requests else None

    def update_from_output(
        self, batch: ScheduledBatch, outcomes: Sequence[Outcome | None], now: int
    ) -> list[Request]:
        """Account a computed step.

        Args:
            outcomes: one for each row; None for rows that do not sample.

        Returns:
            The requests that ended with it.
        """
        finished: list[tuple[Request, FinishReason]] = []
        for request, num_new, outcome in zip(
            batch.requests, batch.num_scheduled_tokens, outcomes, strict=True
        ):
            request.num_computed_tokens += num_new
            if outcome is ONE_TOKEN:
                request.num_output_tokens += 1
                request.num_tokens += 1
                request.is_decoding = True
                continue
            if outcome is None:
                continue
            request.is_decoding = True
            request.num_output_tokens += outcome.num_sampled
            request.num_tokens += outcome.num_sampled
            request.block_hashes += outcome.new_block_hashes
            if outcome.predicted_output_tokens is not None:
                request.predicted_output_tokens = outcome.predicted_output_tokens
                self._steps_in_order, self._order_is_fixed = 0, False
            if outcome.finish_reason is not None:
                finished.append((request, outcome.finish_reason))
        for row in batch.prefill_rows:
            request = batch.requests[row]
            if request.first_token_time is None and request.num_output_tokens:
                request.first_token_time = now
        if self._reports_tokens:
            self._report_sampled(batch, outcomes, now)
        if self.config.enable_prefix_caching:
            for request in batch.requests:
                self.kv.register_blocks(request, request.num_computed_tokens)
        for request, reason in finished:
            self._finish(request, reason, now)
        if finished:
            self.running = [r for r in self.running if r.state is RequestState.RUNNING]
        return [request for request, _ in finished]

    def _report_sampled(self, batch: ScheduledBatch, outcomes: Sequence[Outcome | None], now: int) -> None:
        for request, outcome in zip(batch.requests, outcomes, strict=True):
            if outcome is not None:
                self.policy.on_tokens(request, 0, outcome.num_sampled, now)

    def _finish(self, request: Request, reason: FinishReason, now: int) -> None:
        self.kv.free(request)
        self.kv.discard(request)
        del self._requests[request.request_id]
        request.state = RequestState.FINISHED
        request.finish_reason = reason
        self.policy.on_finish(request, now)


def _make_rejection(config: SchedulerConfig) -> EarlyRejection | None:
    if config.early_rejection == "none":
        return None
    return EarlyRejection(config, config.estimate() if config.early_rejection == "predicted" else None)
