"""The scheduler: which requests compute how many tokens in the next step. No clock, no tensor, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from tinyllm.errors import InputError
from tinyllm.policy.admission import refusal, slots_at_admission, slots_that_must_fit
from tinyllm.policy.base import FOREVER, Key, SchedulingPolicy
from tinyllm.policy.batch import ONE_TOKEN, Outcome, ScheduledBatch
from tinyllm.policy.batching import BATCHING, Phase
from tinyllm.policy.chunking import DeadlineChunks
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.rejection import EarlyRejection
from tinyllm.policy.request import FinishReason, Request, RequestState
from tinyllm.policy.swap import make_kv_manager
from tinyllm.policy.units import NS_PER_S
from tinyllm.policy.waiting import WaitingQueue, full_key, make_queue


class Scheduler:
    """Continuous batching with chunked prefill, driven by a policy's order.

    There are no phases: a scheduled request gets `min(num_tokens − num_computed_tokens, chunk limit, budget
    left)` tokens. `schedule` builds a step in three moves, each a method:

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
        self.config = config
        self.policy = policy
        self.kv = make_kv_manager(config)
        self.running: list[Request] = []
        """Residents in the order of the last step; held ones at the end."""
        self.waiting: WaitingQueue = make_queue(policy)
        self._requests: dict[str, Request] = {}
        self._num_held = 0
        self._steps_in_order = 0
        self._order_is_fixed = False
        self._num_added = 0
        self._num_admissions = 0
        self._num_preemptions = 0
        self.chunk_limit = config.max_num_batched_tokens
        if config.enable_chunked_prefill and config.long_prefill_token_threshold:
            self.chunk_limit = min(self.chunk_limit, config.long_prefill_token_threshold)
        self._shared_chunk_limit = self.chunk_limit
        self._lone_chunk_limit = (
            self.chunk_limit if config.cap_lone_prefill else config.max_num_batched_tokens
        )
        self._registers_scheduled = config.enable_prefix_caching and config.register_blocks == "scheduled"
        self._batching = BATCHING[config.batching]()
        self._chunks = _make_chunks(config)
        self._rejection = _make_rejection(config)
        self._prefill_limit = config.max_num_batched_tokens
        # A call for every token of a policy that does not listen is a tenth of a step.
        self._reports_tokens = type(policy).on_tokens is not SchedulingPolicy.on_tokens

    # ── between steps ────────────────────────────────────────────────────────────────────────────────

    @property
    def num_unfinished(self) -> int:
        """Requests waiting or running."""
        return len(self._requests)

    @property
    def num_held(self) -> int:
        """Running requests, at the end of `running`, that the policy holds."""
        return self._num_held

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
        if reason is None and most_queued is not None and len(self.waiting) >= most_queued:
            reason = f"{most_queued} requests wait already, max_queued_requests is reached"
        if reason is None and self._rejection is not None:
            reason = self._rejection.refusal(request, self._requests.values(), now)
        return reason

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

    # ── the moves of a step ──────────────────────────────────────────────────────────────────────────

    def _order_running(self, now: int) -> None:
        """Sort the running requests by key, held ones last, unless the order still stands."""
        if self._steps_in_order > 0:
            self._steps_in_order -= 1
            return
        keyed: list[tuple[Key, Request]] = []
        held: list[Request] = []
        for request in self.running:
            key = self.policy.key(request, now)
            if key is None:
                held.append(request)
            else:
                keyed.append((full_key(key, request), request))
        keyed.sort()
        held.sort(key=lambda request: (request.arrival, request.index))
        ordered = [request for _, request in keyed]
        self.running = ordered + held
        self._num_held = len(held)
        # Whether a request stays held is not a matter of order: it is asked again in every step.
        horizon = 1 if held else self.policy.decode_horizon(ordered, len(self.waiting), now)
        self._steps_in_order = horizon - 1
        self._order_is_fixed = horizon >= FOREVER

    def _comes_last(self, request: Request, now: int) -> bool:
        """Whether a request that starts to run belongs behind all others, which are in order."""
        key = self.policy.key(request, now)
        if key is None or not self.running:
            return key is not None
        last = self.running[-1]
        last_key = self.policy.key(last, now)
        return last_key is not None and full_key(last_key, last) < full_key(key, request)

    def _preempt_for_waiting(self, batch: ScheduledBatch, now: int) -> None:
        """Let the best waiting request displace running ones with strictly larger keys, the largest first.

        It displaces as few as give it a seat and its blocks, and none where even all of them would not: such
        a victim would lose its work and help nobody. Whether the step's budget then reaches as far as the
        waiting request is for moves 2 and 3 to find.
        """
        best = self.waiting.best(now)
        if best is None or not self.running:
            return
        best_key = self.policy.key(best, now)
        if best_key is None:
            return
        cached = self.kv.find_cached_blocks(best)
        num_slots = slots_at_admission(self.config, best, self._num_kept(best, cached), self.chunk_limit)
        num_slots = slots_that_must_fit(self.config, best, num_slots)
        protected = set(cached)
        lost: Counter[int] = Counter()
        freed = 0
        for num_victims in range(len(self.running) + 1):
            if num_victims:
                victim = self.running[-num_victims]
                victim_key = self.policy.key(victim, now)
                if victim_key is not None and not victim_key > best_key:
                    return
                # A block that victims share is free once the last of them has lost it.
                for block_id in victim.block_ids:
                    lost[block_id] += 1
                    freed += lost[block_id] == self.kv.pool.num_owners(block_id) and block_id not in protected
            left = len(self.running) - num_victims
            if left < self.config.max_num_seqs and self.kv.can_admit(
                cached, num_slots, waive_watermark=left == 0, extra=freed
            ):
                for _ in range(num_victims):
                    self.preempt_last(batch, now)
                return

    def _most_prefill_tokens(self, now: int) -> int:
        """Prompt tokens of the step that begins now, at most."""
        limit = self.config.max_num_prefill_tokens or self.config.max_num_batched_tokens
        if self._chunks is not None:
            allowed = self._chunks.prefill_tokens(self.running, now)
            limit = limit if allowed is None else min(limit, allowed)
        return limit

    def schedule_running(self, batch: ScheduledBatch, now: int, phase: Phase | None = None) -> int:
        """Move 2: give running requests (of one phase) their tokens in order; return the budget that is left."""
        budget = self.config.max_num_batched_tokens
        # The hot loop of a simulation: bound methods and sums in locals.
        add_row, add_count = batch.requests.append, batch.num_scheduled_tokens.append
        chunk_limit, prefill_limit = self.chunk_limit, self._prefill_limit
        decode_context_tokens = 0
        for request in self._rows(phase):
            if budget == 0:
                break
            num_computed = request.num_computed_tokens
            if request.is_decoding:
                num_new = 1
            else:
                prefill_left = prefill_limit - batch.prefill_tokens
                num_new = min(request.num_tokens - num_computed, chunk_limit, budget, prefill_left)
                if num_new == 0:
                    continue
            slots = num_computed + num_new
            if slots > request.num_slots and not self._grow(request, slots, batch, now):
                break
            if request.is_decoding:
                add_row(request)
                add_count(1)
                decode_context_tokens += slots
            else:
                self._add_prefill(batch, request, num_new, now)
            budget -= num_new
        batch.decode_seqs = len(batch.requests) - batch.prefill_seqs
        batch.decode_context_tokens = decode_context_tokens
        batch.num_tokens += batch.decode_seqs
        batch.num_sampled += batch.decode_seqs
        return budget

    def add_row(self, batch: ScheduledBatch, request: Request, num_new: int, now: int) -> None:
        """Append a row of a resident that has the slots for so many tokens."""
        if not request.is_decoding:
            self._add_prefill(batch, request, num_new, now)
            return
        batch.requests.append(request)
        batch.num_scheduled_tokens.append(num_new)
        batch.decode_seqs += 1
        batch.decode_context_tokens += request.num_computed_tokens + num_new
        batch.num_tokens += num_new
        batch.num_sampled += num_new

    def _rows(self, phase: Phase | None) -> Iterator[Request]:
        """The residents that may get tokens, in order. Lazy: where the list loses victims at its end, this ends
        earlier, as it must."""
        rows = islice(self.running, len(self.running) - self._num_held)
        most_decodes = self.config.max_num_decode_tokens
        if phase is None and most_decodes is None:
            return rows
        return _eligible(rows, phase, most_decodes or self.config.max_num_seqs)

    def schedule_waiting(self, batch: ScheduledBatch, budget: int, now: int) -> bool:
        """Move 3: admit waiting requests in order while budget, seats and blocks last.

        Returns:
            Whether the limits of the step ended it, not seats, blocks or the queue.
        """
        if len(self.running) >= self.config.max_num_seqs:
            return False
        if budget == 0 or batch.prefill_tokens == self._prefill_limit:
            return len(self.waiting) > 0
        if self._registers_scheduled:
            for request, num_new in zip(batch.requests, batch.num_scheduled_tokens, strict=True):
                self.kv.register_blocks(request, request.num_computed_tokens + num_new)
        step_is_full = False
        for request in self._candidates(now):
            cached = self.kv.find_cached_blocks(request)
            num_kept = self._num_kept(request, cached)
            num_new = self._first_chunk(request.num_tokens - num_kept, batch, budget)
            if num_new == 0:
                step_is_full = True
            elif self._admit(request, cached, num_kept, num_new, batch, now):
                self._add_prefill(batch, request, num_new, now)
                if self._registers_scheduled:
                    self.kv.register_blocks(request, num_kept + num_new)
                budget -= num_new
                if len(self.running) >= self.config.max_num_seqs:
                    return False
                if budget == 0 or batch.prefill_tokens == self._prefill_limit:
                    return len(self.waiting) > 0
                continue
            if not self.policy.overtake:
                break
        return step_is_full

    def _candidates(self, now: int) -> Iterator[Request]:
        if self.policy.overtake:
            yield from self.waiting.ordered(now)
        else:
            # Asked anew after each admission, which may have changed the keys; who is not admitted blocks.
            while (best := self.waiting.best(now)) is not None:
                yield best

    def _num_kept(self, request: Request, cached: list[int]) -> int:
        """Tokens of a waiting request that need not be computed: hits of the prefix cache, or swapped out."""
        return len(cached) * self.config.block_size or request.num_computed_tokens

    def _first_chunk(self, num_left: int, batch: ScheduledBatch, budget: int) -> int:
        """Tokens that a request with so many to compute gets when admitted; 0 where the step has no room."""
        num_new = min(num_left, self.chunk_limit, budget, self._prefill_limit - batch.prefill_tokens)
        if num_new < num_left:
            most_partial = self.config.max_num_partial_prefills
            if not self.config.enable_chunked_prefill:
                return 0
            if most_partial is not None and self._num_partial(batch) >= most_partial:
                return 0
        return num_new

    def _num_partial(self, batch: ScheduledBatch) -> int:
        """Residents whose prompt is not finished with this step."""
        return sum(not r.is_decoding for r in self.running) - batch.prefill_seqs + len(batch.partial_rows)

    def _admit(
        self,
        request: Request,
        cached: list[int],
        num_kept: int,
        num_new: int,
        batch: ScheduledBatch,
        now: int,
    ) -> bool:
        """Make a waiting request run, if its blocks can be had."""
        num_slots = slots_at_admission(self.config, request, num_kept, num_new)
        must_fit = slots_that_must_fit(self.config, request, num_slots)
        if not self.kv.admit(request, cached, num_slots, waive_watermark=not self.running, must_fit=must_fit):
            return False
        batch.swapped_in_blocks += self.kv.discard(request)
        self.waiting.remove(request)
        request.state = RequestState.RUNNING
        request.num_computed_tokens = request.num_cached_tokens = num_kept
        request.admitted_index = self._num_admissions
        self._num_admissions += 1
        # The next step sorts, unless the keys of running requests never move and this one's is the largest.
        if not (self._order_is_fixed and self._comes_last(request, now)):
            self._steps_in_order = 0
        self.running.append(request)
        batch.admitted.append(request)
        return True

    def _add_prefill(self, batch: ScheduledBatch, request: Request, num_new: int, now: int) -> None:
        """Append a row that computes known tokens: a chunk of the prompt, or what a preemption lost."""
        start = request.num_computed_tokens
        end = start + num_new
        row = len(batch.requests)
        batch.prefill_rows.append(row)
        if end == request.num_tokens:
            batch.num_sampled += 1
        else:
            batch.partial_rows.append(row)
        batch.requests.append(request)
        batch.num_scheduled_tokens.append(num_new)
        batch.num_tokens += num_new
        batch.prefill_seqs += 1
        batch.prefill_tokens += num_new
        batch.prefill_attention_pairs += num_new * start + num_new * (num_new + 1) // 2
        batch.prefill_context_tokens += end
        high_water = max(start, request.computed_high_water)
        request.num_recomputed_tokens += min(end, high_water) - start
        request.computed_high_water = max(high_water, end)
        if self._reports_tokens:
            # Past the prompt come sampled tokens, which were reported when they were sampled.
            fresh = min(end, request.num_prompt_tokens) - high_water
            if fresh > 0:
                self.policy.on_tokens(request, fresh, 0, now)

    # ── blocks ───────────────────────────────────────────────────────────────────────────────────────

    def _grow(self, request: Request, num_slots: int, batch: ScheduledBatch, now: int) -> bool:
        """Find blocks for `num_slots` tokens, preempting from the end; False if the request itself had to go."""
        while not self.kv.allocate_slots(request, num_slots):
            if self.config.preemption == "never":
                raise RuntimeError(f"{request!r} outgrew the blocks that were reserved for it")
            if self.preempt_last(batch, now) is request:
                return False
        return True

    def preempt_last(self, batch: ScheduledBatch, now: int) -> Request:
        """Take the blocks of the last running request: a held one if there is one, else the largest key."""
        victim = self.running.pop()
        self._num_held -= self._num_held > 0
        victim.computed_high_water = max(victim.computed_high_water, victim.num_computed_tokens)
        if self.kv.preempt(victim):
            batch.swapped_out_blocks += victim.num_cpu_blocks
        else:
            victim.num_computed_tokens = 0
        victim.state = RequestState.PREEMPTED
        victim.is_decoding = False
        victim.num_preemptions += 1
        victim.preempted_index = self._num_preemptions
        self._num_preemptions += 1
        self.waiting.add(victim, now)
        batch.preempted.append(victim)
        return victim

    def _finish(self, request: Request, reason: FinishReason, now: int) -> None:
        self.kv.free(request)
        self.kv.discard(request)
        del self._requests[request.request_id]
        request.state = RequestState.FINISHED
        request.finish_reason = reason
        self.policy.on_finish(request, now)


def _eligible(rows: Iterator[Request], phase: Phase | None, most_decodes: int) -> Iterator[Request]:
    """The rows of a phase, decoding ones up to a limit."""
    for request in rows:
        if phase is not None and request.is_decoding != (phase == "decode"):
            continue
        if request.is_decoding:
            if most_decodes == 0:
                continue
            most_decodes -= 1
        yield request


def _make_chunks(config: SchedulerConfig) -> DeadlineChunks | None:
    estimate = config.estimate()
    if config.tpot_slo is None or estimate is None:
        return None
    return DeadlineChunks(estimate, round(config.tpot_slo * NS_PER_S), config.block_size)


def _make_rejection(config: SchedulerConfig) -> EarlyRejection | None:
    if config.early_rejection == "none":
        return None
    return EarlyRejection(config, config.estimate() if config.early_rejection == "predicted" else None)
