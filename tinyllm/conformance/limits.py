"""What is true of every batch under every policy, computed afresh from its rows."""

from __future__ import annotations

from tinyllm.policy import Request, ScheduledBatch, Scheduler


class ViolationError(AssertionError):
    """A policy, or the scheduler under it, broke a promise. The message says which request and what."""


def require(holds: bool, broken: str) -> None:
    """Raise ViolationError with this message unless the condition holds."""
    if not holds:
        raise ViolationError(broken)


def check_batch(scheduler: Scheduler, batch: ScheduledBatch) -> None:
    """Check a batch between `schedule` and `update_from_output`.

    Raises:
        ViolationError: a budget is exceeded, a row has no room, a victim was scheduled, or a sum is wrong.
    """
    rows = list(zip(batch.requests, batch.num_scheduled_tokens, strict=True))
    names = [request.request_id for request in batch.requests]
    require(len(set(names)) == len(names), f"a request is in one batch twice: {names}")
    require(all(count >= 1 for _, count in rows), "a row of no tokens")
    for request, count in rows:
        end = request.num_computed_tokens + count
        require(end <= request.num_tokens, f"{request.request_id}: more tokens scheduled than it has")
        require(end <= request.num_slots, f"{request.request_id}: tokens scheduled without a KV slot")
    _check_budget(scheduler, batch)
    _check_victims(scheduler, batch, names)
    _check_sums(batch, rows)


def _check_budget(scheduler: Scheduler, batch: ScheduledBatch) -> None:
    config, counts = scheduler.config, batch.num_scheduled_tokens
    require(sum(counts) <= config.max_num_batched_tokens, f"{sum(counts)} tokens exceed the step's budget")
    if not config.enable_chunked_prefill:
        require(not batch.partial_rows, "a prompt is cut although chunked prefill is off")
    elif config.long_prefill_token_threshold:
        longest = max(counts)
        capped = config.cap_lone_prefill or scheduler.num_unfinished > 1
        require(not capped or longest <= config.long_prefill_token_threshold, f"a chunk of {longest} tokens")
    for phase, count, most in (
        ("prefill", batch.prefill_tokens, config.max_num_prefill_tokens),
        ("decode", batch.decode_seqs, config.max_num_decode_tokens),
    ):
        require(most is None or count <= most, f"{count} {phase} tokens exceed their limit")
    if config.batching == "prefill-first":
        require(not (batch.prefill_seqs and batch.decode_seqs), "prefills and decodes in one step")
    if config.max_num_partial_prefills is not None:
        completed = batch.prefill_seqs - len(batch.partial_rows)
        partial = sum(not request.is_decoding for request in scheduler.running) - completed
        require(partial <= config.max_num_partial_prefills, f"{partial} partial prefills exceed their limit")


def _check_victims(scheduler: Scheduler, batch: ScheduledBatch, names: list[str]) -> None:
    # Only a victim of a waiting request may be in the batch: it found room again and was resumed at once.
    back = {request.request_id for request in batch.preempted} & set(names)
    resumed = {request.request_id for request in batch.admitted}
    require(back <= resumed, f"{sorted(back - resumed)}: preempted and scheduled in one step")
    may_resume = scheduler.policy.preemptive or scheduler.config.batching == "take-back"
    require(not back or may_resume, f"{sorted(back)}: preempted for a waiting request")


def _check_sums(batch: ScheduledBatch, rows: list[tuple[Request, int]]) -> None:
    partial = [i for i, (r, count) in enumerate(rows) if r.num_computed_tokens + count < r.num_tokens]
    prefill = [i for i, (r, _) in enumerate(rows) if not r.is_decoding]
    decode = [(r, count) for r, count in rows if r.is_decoding]
    ends = [(rows[i][0].num_computed_tokens, rows[i][1]) for i in prefill]
    require(all(count == 1 for _, count in decode), "a decoding row of more than one token")
    afresh = {
        "partial_rows": partial,
        "prefill_rows": prefill,
        "num_tokens": sum(count for _, count in rows),
        "num_sampled": len(rows) - len(partial),
        "prefill_seqs": len(prefill),
        "decode_seqs": len(decode),
        "prefill_tokens": sum(p for _, p in ends),
        "decode_context_tokens": sum(r.num_computed_tokens + 1 for r, _ in decode),
        "prefill_context_tokens": sum(x + p for x, p in ends),
        "prefill_attention_pairs": sum(sum(range(x + 1, x + p + 1)) for x, p in ends),
    }
    for name, value in afresh.items():
        told = getattr(batch, name)
        require(told == value, f"the batch's {name} is {told}, its rows give {value}")
