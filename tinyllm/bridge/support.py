"""What of vLLM a policy can schedule: the rest is refused before a model is loaded."""

from __future__ import annotations

from typing import Any

from tinyllm.bridge.versions import check_version
from tinyllm.errors import InputError
from tinyllm.policy.base import SchedulingPolicy


def check_supported(vllm_config: Any, policy: SchedulingPolicy) -> None:
    """Refuse what the bridge can't follow.

    Raises:
        InputError: another version of vLLM, a feature that schedules in a way of its own, or as `check_policy`.
    """
    check_version()
    scheduler = vllm_config.scheduler_config
    unsupported = {
        "async scheduling (--no-async-scheduling)": bool(scheduler.async_scheduling),
        "--scheduling-policy priority (the policy is tinyllm's)": scheduler.policy != "fcfs",
        "speculative decoding": vllm_config.speculative_config is not None,
        "KV transfer": vllm_config.kv_transfer_config is not None,
        "pipeline parallelism": vllm_config.parallel_config.pipeline_parallel_size > 1,
        "pooling models": vllm_config.model_config.runner_type != "generate",
    }
    for feature, is_used in unsupported.items():
        if is_used:
            raise InputError(f"tinyllm.bridge: {feature} is not supported under a policy; leave it out")
    check_policy(policy)


def check_policy(policy: SchedulingPolicy) -> None:
    """Refuse a policy that vLLM's loop can't serve.

    Raises:
        InputError: it overtakes.
    """
    if policy.overtake:
        raise InputError(
            f"tinyllm.bridge: {type(policy).__name__} overtakes, but in vLLM a waiting request that lacks blocks "
            "stops the admission; choose another policy"
        )
