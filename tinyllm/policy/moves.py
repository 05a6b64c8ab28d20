"""The moves of a step: order the residents, let a waiting request displace some, give tokens, admit. One class, for
all of them work on the same lists and counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from tinyllm.policy.admission import slots_at_admission, slots_that_must_fit
from tinyllm.policy.base import FOREVER, Key, SchedulingPolicy
from tinyllm.policy.batch import ScheduledBatch
from tinyllm.policy.batching import Phase
from tinyllm.policy.chunking import DeadlineChunks
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.request import Request, RequestState
from tinyllm.policy.swap import make_kv_manager
from tinyllm.policy.units import NS_PER_S
from tinyllm.policy.waiting import WaitingQueue, full_key, make_queue


class SchedulerMoves:
    """The state of a scheduler and what a step may do to it; `Scheduler` decides when.

    Attributes:
        config, policy: as given.
        kv: the KV blocks.
        running: residents in the order of the last step; held ones at the end.
        waiting: those that wait for their first admission, or for their return after a preemption.
        chunk_limit: tokens of one prompt in this step at most.
    """

    def __init__(self, config: SchedulerConfig, policy: SchedulingPolicy) -> None:
        self.config = config
        self.policy = policy
        self.kv = make_kv_manager(config)
        self.running: list[Request] = []
        self.waiting: WaitingQueue = make_queue(policy)
        self._num_held = 0
        self._steps_in_order = 0
        self._order_is_fixed = False
        self._num_admissions = 0
        self._num_preemptions = 0
        self._chunks = _make_chunks(config)
        self._prefill_limit = self.chunk_limit = config.max_num_batched_tokens
        self._registers_scheduled = config.enable_prefix_caching and config.register_blocks == "scheduled"
        # A call for every token of a policy that does not listen is a tenth of a step.
        self._reports_tokens = type(policy).on_tokens is not SchedulingPolicy.on_tokens

    @property
    def num_held(self) -> int:
        """Residents, at the end of `running`, that the policy holds."""
        return self._num_held

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

        It displaces as few as give it a seat and its blocks, and none where even all of them would not, or
        where too many prompts are unfinished: such a victim would lose its work and help nobody. Whether the
        step's budget then reaches as far as the waiting request is for moves 2 and 3 to find.
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
            has_seat = left < self.config.max_num_seqs and self._may_begin_prompt(left)
            if has_seat and self.kv.can_admit(cached, num_slots, waive_watermark=left == 0, extra=freed):
                for _ in range(num_victims):
                    self.preempt_last(batch, now)
                return

    def _may_begin_prompt(self, num_residents: int) -> bool:
        """Whether a prompt may be begun, that might not end with the step, beside the first so many residents."""
        most_partial = self.config.max_num_partial_prefills
        if most_partial is None:
            return True
        return sum(not r.is_decoding for r in islice(self.running, num_residents)) < most_partial

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
