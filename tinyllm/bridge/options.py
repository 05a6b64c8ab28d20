"""Our options in vLLM's words, and back."""

from __future__ import annotations

from typing import Any, Final

from tinyllm.policy.config import SchedulerConfig

VLLM_RULES: Final[dict[str, Any]] = {"cap_lone_prefill": False, "register_blocks": "scheduled"}
"""What vLLM always does, as options of ours."""

VLLM_DEFAULTS: Final = VLLM_RULES | {"admission": "prompt-fits"}
"""What vLLM does unless it is told otherwise."""


def scheduler_options(config: SchedulerConfig) -> dict[str, Any]:
    """Fields of vLLM's SchedulerConfig: our options, but for the pool, the context and the prefix cache."""
    return {
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "enable_chunked_prefill": config.enable_chunked_prefill,
        "long_prefill_token_threshold": config.long_prefill_token_threshold,
        "scheduler_reserve_full_isl": config.admission == "prompt-fits",
        "watermark": _vllm_watermark(config),
        "async_scheduling": False,
    }


def num_blocks(config: SchedulerConfig) -> int:
    """Blocks of a vLLM pool in which as many can be used: the first one is its null block."""
    return config.num_gpu_blocks + 1


def our_config(scheduler: Any) -> SchedulerConfig:
    """What a vLLM Scheduler is configured to do.

    The prefix cache is left out: whose blocks are shared is vLLM's to say.
    """
    theirs = scheduler.scheduler_config
    usable = scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1
    kept = scheduler.kv_cache_manager.watermark_blocks
    return SchedulerConfig(
        max_num_seqs=scheduler.max_num_active_reqs,
        max_num_batched_tokens=scheduler.max_num_scheduled_tokens,
        block_size=scheduler.block_size,
        num_gpu_blocks=usable,
        max_model_len=scheduler.max_model_len,
        long_prefill_token_threshold=theirs.long_prefill_token_threshold,
        enable_chunked_prefill=theirs.enable_chunked_prefill,
        cap_lone_prefill=False,
        admission="prompt-fits" if theirs.scheduler_reserve_full_isl else "first-chunk",
        watermark=_same_part(kept, usable),
    )


def _vllm_watermark(config: SchedulerConfig) -> float:
    return _same_part(int(config.watermark * config.num_gpu_blocks), num_blocks(config))


def _same_part(kept: int, blocks: int) -> float:
    """A fraction of a pool that is this whole number of blocks."""
    return (kept + 0.5) / blocks if kept else 0.0
