"""Which two schedulers are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class Pair:
    """Two schedulers that are to do the same in every step.

    Attributes:
        policy, policy_args, options: of ours.
        vllm_policy: `fcfs` or `priority`.
        bridged: whether it is our policy that vLLM runs, in a `PolicyScheduler`.
    """

    policy: str
    policy_args: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    vllm_policy: str = "fcfs"
    bridged: bool = False


VLLM_PAIRS: Final = {
    "fcfs": Pair("fcfs"),
    "priority": Pair("priority", {"preemptive": False}, {"batching": "take-back"}, "priority"),
}
"""vLLM's own policies, and what of ours is equal to them."""
