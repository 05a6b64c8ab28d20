"""What a request of a stalled engine waits for, in words."""

from __future__ import annotations

from tinyllm.policy.admission import slots_at_admission, slots_that_must_fit
from tinyllm.policy.request import Request, RequestState
from tinyllm.policy.scheduler import Scheduler


def waits_for(scheduler: Scheduler, request: Request, now: int) -> str:
    """Why an unfinished request was not scheduled at `now`."""
    if scheduler.policy.key(request, now) is None:
        return "held by the policy (its key is None)"
    if request.state is RequestState.RUNNING:
        return "runs, but got no tokens"
    best = scheduler.waiting.best(now)
    if best is not None and best is not request and not scheduler.policy.overtake:
        return f"waits behind {best.request_id}"
    if len(scheduler.running) >= scheduler.config.max_num_seqs:
        return f"waits for one of {scheduler.config.max_num_seqs} seats"
    cached = scheduler.kv.find_cached_blocks(request)
    slots = slots_at_admission(
        scheduler.config, request, len(cached) * scheduler.config.block_size, scheduler.chunk_limit
    )
    slots = slots_that_must_fit(scheduler.config, request, slots)
    needed = scheduler.kv.num_blocks_to_admit(cached, slots)
    kept_free = scheduler.kv.watermark_blocks if scheduler.running else 0
    usable = max(0, scheduler.kv.pool.num_free - kept_free)
    return f"waits for {needed} KV blocks, {usable} can be had"
