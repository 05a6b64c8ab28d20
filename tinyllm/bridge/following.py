"""Our Scheduler where vLLM's decides: it orders, is told what was decided, and keeps the policy's accounts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tinyllm.policy.base import SchedulingPolicy
from tinyllm.policy.batch import ScheduledBatch
from tinyllm.policy.batching import Moves
from tinyllm.policy.block_pool import BlockPool
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.kv_manager import KVBlockManager
from tinyllm.policy.request import Request
from tinyllm.policy.scheduler import Scheduler

Decide = Callable[[ScheduledBatch, int], None]
"""Lets vLLM schedule a step, and enters what it decided into the batch."""


class FollowingScheduler(Scheduler):
    """The policy's side of a vLLM scheduler.

    Orders of running and waiting requests, holds, the choice of victims and everything that a policy hears are
    those of `Scheduler`, whose very code runs. Which requests then find budget and blocks is vLLM's to say.

    Args:
        config: vLLM's limits in our words.
        decide: called once a step, when the order stands.
        manager: vLLM's KV cache manager.
        theirs: vLLM's request of a view.
        give_way: makes vLLM preempt the request of a view, unless that was its own decision.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        policy: SchedulingPolicy,
        decide: Decide,
        manager: Any,
        theirs: Callable[[Request], Any],
        give_way: Callable[[Request], None],
    ) -> None:
        super().__init__(config, policy)
        self.kv: KVBlockManager = _VLLMBlocks(config, manager, theirs, give_way)
        self._batching = _Told(decide)
        self._manager = manager
        self._theirs = theirs

    def refusal(self, request: Request, now: int) -> str | None:
        """None but for an id in use: vLLM has accepted the request."""
        return "its id is in use" if request.request_id in self._requests else None

    def continued(self, view: Request, num_new: int, batch: ScheduledBatch, now: int) -> None:
        """vLLM gave a running request so many tokens."""
        self.add_row(batch, view, num_new, now)

    def admitted(self, view: Request, num_cached: int, num_new: int, batch: ScheduledBatch, now: int) -> None:
        """vLLM admitted a waiting request."""
        self._admit(view, [], num_cached, num_new, batch, now)
        self._add_prefill(batch, view, num_new, now)

    def preempted(self, view: Request, batch: ScheduledBatch, now: int) -> None:
        """vLLM preempted the last of the running requests.

        Raises:
            RuntimeError: it was another one: the two orders are no longer the same.
        """
        if self.preempt_last(batch, now) is not view:
            raise RuntimeError(f"vLLM preempted {view!r}, which does not come last")

    def _preempt_for_waiting(self, batch: ScheduledBatch, now: int) -> None:
        if len(self.waiting):
            for view in self.running:
                view.block_ids = list(self._manager.get_block_ids(self._theirs(view).request_id)[0])
        super()._preempt_for_waiting(batch, now)


class _Told:
    """A batching that vLLM composes."""

    def __init__(self, decide: Decide) -> None:
        self._decide = decide

    def compose(self, moves: Moves, batch: ScheduledBatch, now: int) -> None:
        self._decide(batch, now)


class _VLLMBlocks(KVBlockManager):
    """vLLM's KV cache, as far as policies and the log look at it. It is vLLM that gives and takes."""

    def __init__(
        self,
        config: SchedulerConfig,
        manager: Any,
        theirs: Callable[[Request], Any],
        give_way: Callable[[Request], None],
    ) -> None:
        super().__init__(config.num_gpu_blocks, config.block_size)
        self.watermark_blocks = manager.watermark_blocks
        self.pool = _VLLMPool(manager.block_pool)
        self._manager = manager
        self._theirs = theirs
        self._give_way = give_way

    def find_cached_blocks(self, request: Request) -> list[int]:
        blocks = self._manager.get_computed_blocks(self._theirs(request))[0]
        return list(blocks.get_block_ids()[0])

    def admit(
        self,
        request: Request,
        cached_blocks: list[int],
        num_slots: int,
        *,
        waive_watermark: bool,
        must_fit: int = 0,
    ) -> bool:
        return True

    def free(self, request: Request) -> None:
        """It is free already."""

    def preempt(self, request: Request) -> bool:
        self._give_way(request)
        return False

    def register_blocks(self, request: Request, num_tokens: int) -> None:
        """It is registered already."""

    def check_integrity(self, residents: Iterable[Request], waiting: Iterable[Request] = ()) -> list[str]:
        return []


class _VLLMPool(BlockPool):
    """Counts of vLLM's block pool, without its null block."""

    def __init__(self, pool: Any) -> None:
        super().__init__(pool.num_gpu_blocks - 1)
        self._pool = pool

    @property
    def num_free(self) -> int:
        return int(self._pool.get_num_free_blocks())

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:  # type: ignore[override]  # counted here, for the log alone
        if not self._pool.enable_caching:
            return 0
        return sum(block.ref_cnt == 0 and block.block_hash is not None for block in self._pool.blocks)

    def num_owners(self, block_id: int) -> int:
        return int(self._pool.blocks[block_id].ref_cnt)

    def count_free(self, block_ids: Sequence[int]) -> int:
        return [self.num_owners(block_id) for block_id in block_ids].count(0)
