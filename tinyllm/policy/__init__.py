"""Scheduling and KV block management as pure objects: no clock, no tensor, no I/O, no hidden randomness."""

from tinyllm.policy.base import FOREVER, Key, SchedulingPolicy
from tinyllm.policy.batch import ONE_TOKEN, Outcome, ScheduledBatch
from tinyllm.policy.block_pool import BlockPool
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.integrity import IntegrityError, check_integrity
from tinyllm.policy.kv_manager import KVBlockManager
from tinyllm.policy.predictor import Predictor, make_predictor
from tinyllm.policy.prefix_pool import PrefixCachingBlockPool
from tinyllm.policy.registry import POLICIES, make_policy
from tinyllm.policy.request import BlockHash, FinishReason, Request, RequestState
from tinyllm.policy.scheduler import Scheduler

__all__ = [
    "FOREVER",
    "ONE_TOKEN",
    "POLICIES",
    "BlockHash",
    "BlockPool",
    "FinishReason",
    "IntegrityError",
    "KVBlockManager",
    "Key",
    "Outcome",
    "Predictor",
    "PrefixCachingBlockPool",
    "Request",
    "RequestState",
    "ScheduledBatch",
    "Scheduler",
    "SchedulerConfig",
    "SchedulingPolicy",
    "check_integrity",
    "make_policy",
    "make_predictor",
]
