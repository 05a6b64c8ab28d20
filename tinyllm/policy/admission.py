"""The rules of admission: what is refused for good, and for how many tokens an admission takes blocks."""

from __future__ import annotations

from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.request import Request


def most_slots(config: SchedulerConfig, request: Request) -> int:
    """KV slots that a request can come to need: the last token that it samples is never computed."""
    total = request.num_prompt_tokens + request.max_tokens
    if config.max_model_len is not None:
        total = min(total, config.max_model_len)
    return total - 1


def slots_at_admission(
    config: SchedulerConfig, request: Request, num_computed: int, chunk_tokens: int
) -> int:
    """Slots for which blocks are taken when a waiting request, of which `num_computed` tokens have their KV, is
    admitted with this first chunk."""
    if config.admission == "reserve-output":
        return most_slots(config, request)
    if config.admission == "full-prompt":
        return request.num_tokens
    return min(num_computed + chunk_tokens, request.num_tokens)


def slots_that_must_fit(config: SchedulerConfig, request: Request, num_slots: int) -> int:
    """Slots that an admission, which takes blocks for `num_slots`, has to find room for."""
    return max(num_slots, request.num_tokens) if config.admission == "prompt-fits" else num_slots


def refusal(config: SchedulerConfig, request: Request) -> str | None:
    """Why this configuration can't ever serve a request, or None: the one line that its user reads."""
    if request.num_prompt_tokens < 1:
        return "the prompt is empty"
    if request.max_tokens < 1:
        return f"max_tokens is {request.max_tokens}, must be at least 1"
    if config.max_model_len is not None and request.num_prompt_tokens > config.max_model_len - 1:
        return (
            f"the prompt of {request.num_prompt_tokens} tokens leaves no room for output "
            f"in max_model_len {config.max_model_len}"
        )
    slots = most_slots(config, request)
    needed = -(-slots // config.block_size)
    if needed > config.num_gpu_blocks:
        return f"needs {needed} KV blocks for {slots} tokens, the pool has {config.num_gpu_blocks}"
    if not config.enable_chunked_prefill and slots > config.max_num_batched_tokens:
        # A preemption would have to compute all of them again, in one step.
        return (
            f"up to {slots} tokens may have to be computed in one step without chunked prefill, "
            f"max_num_batched_tokens is {config.max_num_batched_tokens}"
        )
    return None
