"""The scheduler: which requests compute how many tokens in the next step. No clock, no tensor, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from tinyllm.errors import InputError
from tinyllm.policy.admission import refusal, slots_at_admission
from tinyllm.policy.base import FOREVER, Key, SchedulingPolicy
from tinyllm.policy.batch import ONE_TOKEN, Outcome, ScheduledBatch
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.kv_manager import KVBlockManager
from tinyllm.policy.request import FinishReason, Request, RequestState
from tinyllm.policy.waiting import WaitingQueue, full_key, make_queue


class Scheduler:
    """Continuous batching with chunked prefill, driven by a policy's order.

    There are no phases: a scheduled request gets `min(num_tokens − num_computed_tokens, chunk limit, budget
    left)` tokens. `schedule` builds a step in three moves, each a method:

    1. a preemptive policy's best waiting request takes the seat or blocks of running ones with larger keys;
    2. running requests by key; where blocks are missing, the last one not yet scheduled loses its own;
    3. waiting requests by key, if move 2 preempted nobody.

    What a step has already scheduled is never taken back. `update_from_output` ends the step. Requests are
    added and aborted only between steps.
    """

    def __init__(self, config: SchedulerConfig, policy: SchedulingPolicy) -> None:
        if policy.preemptive and config.preemption == "never":
            raise InputError(
                "--preemption never excludes a preemptive policy: choose --preemption recompute, "
                "or --policy-arg preemptive=false"
            )
        self.config = config
        self.policy = policy
        self.kv = KVBlockManager(
            config.num_gpu_blocks,
            config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            watermark=config.watermark,
        )
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
        # A call for every token of a policy that does not listen is a tenth of a step.
        self._reports_tokens = type(policy).on_tokens is not SchedulingPolicy.on_tokens

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

    def refusal(self, request: Request) -> str | None:
        """Why this request can't be added, or None. Asking changes nothing."""
        if request.request_id in self._requests:
            return f"a request with the id {request.request_id!r} is not finished yet"
        return refusal(self.config, request)

    def add_request(self, request: Request, now: int) -> str | None:
        """Let a request wait.

        Returns:
            None, or the reason for which it is refused; then nothing has changed but its own state.
        """
        reason = self.refusal(request)
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
        return None

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
        self._order_running(now)
        if self.policy.preemptive:
            self._preempt_for_waiting(batch, now)
        num_victims = len(batch.preempted)
        budget = self._schedule_running(batch, now)
        if len(batch.preempted) == num_victims:
            self._schedule_waiting(batch, budget, now)
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
            if outcome.finish_reason is not None:
                finished.append((request, outcome.finish_reason))
        if self._reports_tokens:
            self._report_sampled(batch, outcomes, now)
        if self.config.enable_prefix_caching:
            for request in batch.requests:
                self.kv.register_computed_blocks(request)
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
        num_slots = slots_at_admission(self.config, best, len(cached), self.chunk_limit)
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
                    self._preempt_last(batch, now)
                return

    def _schedule_running(self, batch: ScheduledBatch, now: int) -> int:
        """Give running requests their tokens in order; return the budget that is left."""
        budget = self.config.max_num_batched_tokens
        running = self.running
        # The hot loop of a simulation: bound methods and sums in locals.
        add_row, add_count = batch.requests.append, batch.num_scheduled_tokens.append
        decode_context_tokens = 0
        # The list loses victims at its end meanwhile: then the iteration ends earlier, as it must.
        for request in islice(running, len(running) - self._num_held):
            if budget == 0:
                break
            num_computed = request.num_computed_tokens
            num_new = request.num_tokens - num_computed
            if num_new > 1:
                num_new = min(num_new, self.chunk_limit, budget)
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

    def _schedule_waiting(self, batch: ScheduledBatch, budget: int, now: int) -> None:
        """Admit waiting requests in order while budget, seats and blocks last."""
        if budget == 0 or len(self.running) >= self.config.max_num_seqs:
            return
        for request in self._candidates(now):
            num_new = self._admit(request, budget, now)
            if num_new == 0:
                if not self.policy.overtake:
                    return
                continue
            batch.admitted.append(request)
            self._add_prefill(batch, request, num_new, now)
            budget -= num_new
            if budget == 0 or len(self.running) >= self.config.max_num_seqs:
                return

    def _candidates(self, now: int) -> Iterator[Request]:
        if self.policy.overtake:
            yield from self.waiting.ordered(now)
        else:
            # Asked anew after each admission, which may have changed the keys; who is not admitted blocks.
            while (best := self.waiting.best(now)) is not None:
                yield best

    def _admit(self, request: Request, budget: int, now: int) -> int:
        """Make a waiting request run, if it fits; return the tokens of its first chunk, 0 if it has to wait."""
        cached = self.kv.find_cached_blocks(request)
        num_cached = len(cached) * self.config.block_size
        num_left = request.num_tokens - num_cached
        num_new = min(num_left, self.chunk_limit, budget)
        if num_new < num_left and not self.config.enable_chunked_prefill:
            return 0
        num_slots = slots_at_admission(self.config, request, len(cached), num_new)
        if not self.kv.admit(request, cached, num_slots, waive_watermark=not self.running):
            return 0
        self.waiting.remove(request)
        request.state = RequestState.RUNNING
        request.num_computed_tokens = request.num_cached_tokens = num_cached
        request.admitted_index = self._num_admissions
        self._num_admissions += 1
        # The next step sorts, unless the keys of running requests never move and this one's is the largest.
        if not (self._order_is_fixed and self._comes_last(request, now)):
            self._steps_in_order = 0
        self.running.append(request)
        return num_new

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
            if self._preempt_last(batch, now) is request:
                return False
        return True

    def _preempt_last(self, batch: ScheduledBatch, now: int) -> Request:
        """Take the blocks of the last running request: a held one if there is one, else the largest key."""
        victim = self.running.pop()
        self._num_held -= self._num_held > 0
        self.kv.free(victim)
        victim.computed_high_water = max(victim.computed_high_water, victim.num_computed_tokens)
        victim.state = RequestState.PREEMPTED
        victim.num_computed_tokens = 0
        victim.is_decoding = False
        victim.num_preemptions += 1
        victim.preempted_index = self._num_preemptions
        self._num_preemptions += 1
        self.waiting.add(victim, now)
        batch.preempted.append(victim)
        return victim

    def _finish(self, request: Request, reason: FinishReason, now: int) -> None:
        self.kv.free(request)
        del self._requests[request.request_id]
        request.state = RequestState.FINISHED
        request.finish_reason = reason
        self.policy.on_finish(request, now)
