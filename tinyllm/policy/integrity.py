"""Recompute the scheduler's and the pool's state from scratch and say what disagrees. Product code: use it."""

from __future__ import annotations

from tinyllm.policy.request import Request, RequestState
from tinyllm.policy.scheduler import Scheduler


class IntegrityError(AssertionError):
    """The scheduler's state contradicts itself: a fault of the scheduler or of a policy that wrote to a view."""


def check_integrity(scheduler: Scheduler) -> None:
    """Check every invariant that holds between steps.

    Raises:
        IntegrityError: with one line for each invariant that is broken.
    """
    faults = [fault for request in scheduler.unfinished() for fault in _request_faults(request)]
    faults += _membership_faults(scheduler)
    faults += scheduler.kv.check_integrity(scheduler.running, scheduler.waiting.requests())
    pool = scheduler.kv.pool
    if pool.num_used + pool.num_free != pool.num_blocks:
        faults.append("used and free blocks do not add up to the pool")
    if not scheduler.running and pool.num_used:
        faults.append("blocks are in use and nothing runs")
    if faults:
        raise IntegrityError("\n".join(faults))


def _membership_faults(scheduler: Scheduler) -> list[str]:
    faults = []
    running = [request.request_id for request in scheduler.running]
    waiting = [request.request_id for request in scheduler.waiting.requests()]
    known = [request.request_id for request in scheduler.unfinished()]
    if sorted(running + waiting) != sorted(known):
        faults.append("running and waiting together are not the unfinished requests, each once")
    if len(running) > scheduler.config.max_num_seqs:
        faults.append(f"{len(running)} requests run, max_num_seqs is {scheduler.config.max_num_seqs}")
    faults += [
        f"{request.request_id}: runs in state {request.state.value}"
        for request in scheduler.running
        if request.state is not RequestState.RUNNING
    ]
    faults += [
        f"{request.request_id}: waits in state {request.state.value}"
        for request in scheduler.waiting.requests()
        if request.state not in (RequestState.WAITING, RequestState.PREEMPTED)
    ]
    return faults


def _request_faults(request: Request) -> list[str]:
    name = request.request_id
    faults = []
    if request.num_tokens != request.num_prompt_tokens + request.num_output_tokens:
        faults.append(f"{name}: num_tokens is not prompt + output")
    if not 0 <= request.num_computed_tokens <= request.num_tokens:
        faults.append(f"{name}: {request.num_computed_tokens} of {request.num_tokens} tokens computed")
    if request.num_output_tokens > request.max_tokens:
        faults.append(f"{name}: more output than max_tokens")
    if request.state is not RequestState.RUNNING and (
        request.block_ids or (request.num_computed_tokens and not request.num_cpu_blocks)
    ):
        faults.append(f"{name}: holds blocks or computed tokens and does not run")
    if request.is_decoding and request.num_computed_tokens != request.num_tokens - 1:
        faults.append(
            f"{name}: decodes with {request.num_tokens - request.num_computed_tokens} tokens to compute"
        )
    return faults
