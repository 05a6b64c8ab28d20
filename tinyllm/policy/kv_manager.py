"""Blocks for requests: admission with prefix hits, growth, release. A failed allocation changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from tinyllm.policy.block_pool import BlockPool
from tinyllm.policy.prefix_pool import PrefixCachingBlockPool
from tinyllm.policy.request import Request


class KVBlockManager:
    """Gives requests the KV blocks for their tokens, and shares full blocks of equal content.

    The blocks of a running request and what they hold::

        │◄── cached ──►│◄─ computed ─►│◄─ this step ─►│◄── reserved, if any ──►│
        │◄─────── num_computed_tokens ►│
        │◄──────────────────────── num_slots = len(block_ids) · block_size ────►│
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = False, watermark: float = 0.0
    ) -> None:
        self.pool = PrefixCachingBlockPool(num_blocks) if enable_prefix_caching else BlockPool(num_blocks)
        self.block_size = block_size
        self.watermark_blocks = int(watermark * num_blocks)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def find_cached_blocks(self, request: Request) -> list[int]:
        """The longest cached prefix of a request without blocks, in token order.

        At least one token of a request is always computed, since only a computed token has logits to
        sample from: the hits end before the block of the last token.
        """
        return self.pool.lookup_prefix(request.block_hashes[: (request.num_tokens - 1) // self.block_size])

    def num_blocks_to_admit(self, cached_blocks: list[int], num_slots: int) -> int:
        """Free blocks that an admission takes: new ones, and hits that have no owner yet."""
        revived = self.pool.count_free(cached_blocks)
        return self.num_blocks_for(num_slots) - len(cached_blocks) + revived

    def can_admit(
        self, cached_blocks: list[int], num_slots: int, *, waive_watermark: bool, extra: int = 0
    ) -> bool:
        """Whether `admit` would succeed if `extra` more blocks were free."""
        kept_free = 0 if waive_watermark else self.watermark_blocks
        return self.num_blocks_to_admit(cached_blocks, num_slots) <= self.pool.num_free + extra - kept_free

    def admit(
        self,
        request: Request,
        cached_blocks: list[int],
        num_slots: int,
        *,
        waive_watermark: bool,
        must_fit: int = 0,
    ) -> bool:
        """Give a request without blocks its prefix hits and new blocks up to `num_slots` tokens.

        Args:
            must_fit: tokens for which blocks must be free, where that is more than `num_slots`.

        Returns:
            False, with nothing changed, if the free blocks above the watermark do not suffice.
        """
        if not self.can_admit(cached_blocks, max(num_slots, must_fit), waive_watermark=waive_watermark):
            return False
        # The hits first: taken after the new blocks, they could have been evicted for them.
        self.pool.touch(cached_blocks)
        new_blocks = self.pool.get(self.num_blocks_for(num_slots) - len(cached_blocks))
        request.block_ids = cached_blocks + new_blocks
        request.num_slots = len(request.block_ids) * self.block_size
        request.num_registered_blocks = len(cached_blocks)
        return True

    def allocate_slots(self, request: Request, num_slots: int) -> bool:
        """Let the blocks of a running request hold `num_slots` tokens; False, with nothing changed, if they can't."""
        missing = self.num_blocks_for(num_slots) - len(request.block_ids)
        if missing > self.pool.num_free:
            return False
        if missing > 0:
            request.block_ids += self.pool.get(missing)
            request.num_slots = len(request.block_ids) * self.block_size
        return True

    def register_blocks(self, request: Request, num_tokens: int) -> None:
        """Make the blocks findable that are full with so many tokens: those computed, or scheduled in this step."""
        full = min(num_tokens // self.block_size, len(request.block_hashes))
        for position in range(request.num_registered_blocks, full):
            self.pool.register(request.block_ids[position], request.block_hashes[position])
        request.num_registered_blocks = max(request.num_registered_blocks, full)

    def free(self, request: Request) -> None:
        """Take the blocks from a request, last one first, so that a cached prefix is evicted from its end."""
        self.pool.free(reversed(request.block_ids))
        request.block_ids = []
        request.num_slots = 0
        request.num_registered_blocks = 0

    def preempt(self, request: Request) -> bool:
        """Take the blocks from a victim; return whether its KV is kept elsewhere, so that nothing is lost."""
        self.free(request)
        return False

    def discard(self, request: Request) -> int:
        """Give up what `preempt` kept, copied back by now or needed no more; return its number of blocks."""
        return 0

    def check_integrity(self, residents: Iterable[Request], waiting: Iterable[Request] = ()) -> list[str]:
        """Recompute the pool from the resident requests' block tables; return what is wrong."""
        faults = []
        tables = []
        for request in residents:
            tables.append(request.block_ids)
            if request.num_slots != len(request.block_ids) * self.block_size:
                faults.append(f"{request.request_id}: num_slots does not match its blocks")
            if request.num_computed_tokens > request.num_slots:
                faults.append(f"{request.request_id}: computed tokens without a slot")
            if len(set(request.block_ids)) != len(request.block_ids):
                faults.append(f"{request.request_id}: a block twice in its table")
        return faults + self.pool.check_integrity(tables)
