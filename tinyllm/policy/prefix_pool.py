"""The pool of KV blocks with a prefix cache: reference counts, an LRU free list, blocks by hash."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from tinyllm.policy.block_pool import BlockPool
from tinyllm.policy.request import BlockHash


class PrefixCachingBlockPool(BlockPool):
    """Blocks that requests of an equal prefix share. Every operation on one block is O(1).

    A block is *referenced* (count ≥ 1) or *free*. Free blocks are handed out in eviction order, those that hold
    nothing of worth before any that can still be hit (as in vLLM)::

        freed without a hash, last one first  │  never used, by id  │  freed with a hash, longest free first
        ──────────────────────────────────────┼─────────────────────┼───────────────────────────────────────
        _stack                                │  _num_touched …     │  _free (an ordered dict)

    A free block keeps its hash until it is handed out again, and can be taken back by that hash (`touch`)
    until then.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._ref_counts: list[int] = []
        self._free: OrderedDict[int, None] = OrderedDict()
        self._hash_of: dict[int, BlockHash] = {}
        # Equal content can be computed twice at the same time: then a list, oldest first.
        self._blocks_of: dict[BlockHash, int | list[int]] = {}

    @property
    def num_free(self) -> int:
        """Blocks without an owner, those with a cached hash included."""
        return self.num_blocks - self._num_touched + len(self._stack) + len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks with an owner."""
        return self._num_touched - len(self._stack) - len(self._free)

    def count_free(self, block_ids: Sequence[int]) -> int:
        """How many of these blocks, all used before, have no owner now."""
        return [self._ref_counts[block_id] for block_id in block_ids].count(0)

    def num_owners(self, block_id: int) -> int:
        """Owners of a block that was used before: freeing it this often makes it free."""
        return self._ref_counts[block_id]

    def get(self, num_blocks: int) -> list[int]:
        """Take `num_blocks` free blocks, count 1 each, in eviction order. What they cached is forgotten.

        Raises:
            ValueError: fewer are free; the pool is unchanged. Callers look at `num_free` first.
        """
        self._check_free(num_blocks)
        blocks = [self._stack.pop() for _ in range(min(num_blocks, len(self._stack)))]
        untouched = self._get_untouched(min(num_blocks - len(blocks), self.num_blocks - self._num_touched))
        self._ref_counts.extend([0] * len(untouched))
        blocks += untouched
        for _ in range(num_blocks - len(blocks)):
            block_id, _ = self._free.popitem(last=False)
            self._forget(block_id)
            blocks.append(block_id)
        for block_id in blocks:
            self._ref_counts[block_id] = 1
        return blocks

    def touch(self, block_ids: Iterable[int]) -> None:
        """Add an owner to blocks found by `lookup`; those that had none leave the free list."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                del self._free[block_id]
                self.num_cached -= 1
            self._ref_counts[block_id] += 1

    def free(self, block_ids: Iterable[int]) -> None:
        """Take one owner from each block; the ones left with none become free in this order.

        Give the last block of a sequence first: a prefix is then evicted from its end.
        """
        ref_counts, free, hash_of, stack = self._ref_counts, self._free, self._hash_of, self._stack
        for block_id in block_ids:
            count = ref_counts[block_id] - 1
            ref_counts[block_id] = count
            if count == 0:
                if block_id in hash_of:
                    free[block_id] = None
                    self.num_cached += 1
                else:
                    stack.append(block_id)

    def register(self, block_id: int, block_hash: BlockHash) -> None:
        """Make a referenced block, whose KV is computed, findable by the hash of its content."""
        self._hash_of[block_id] = block_hash
        known = self._blocks_of.get(block_hash)
        if known is None:
            self._blocks_of[block_hash] = block_id
        elif isinstance(known, list):
            known.append(block_id)
        else:
            self._blocks_of[block_hash] = [known, block_id]

    def lookup(self, block_hash: BlockHash) -> int | None:
        """A block with this content (the oldest of several), or None."""
        known = self._blocks_of.get(block_hash)
        return known[0] if isinstance(known, list) else known

    def lookup_prefix(self, block_hashes: Iterable[BlockHash]) -> list[int]:
        """Blocks with these contents, as `lookup` finds them, up to the first that is not cached."""
        blocks: list[int] = []
        # A waiting request of a long prompt is looked up in every step: `map` keeps the loop out of Python.
        for known in map(self._blocks_of.get, block_hashes):
            if known is None:
                break
            blocks.append(known[0] if isinstance(known, list) else known)
        return blocks

    def free_order(self) -> list[int]:
        """The ids of the free blocks, next one first, for tests and debugging. O(num_blocks)."""
        return [*reversed(self._stack), *range(self._num_touched, self.num_blocks), *self._free]

    def check_integrity(self, owned: Sequence[Sequence[int]]) -> list[str]:
        """Recount everything from scratch against the blocks that requests own; return what is wrong."""
        faults: list[str] = []
        counts = [0] * self._num_touched
        for block_ids in owned:
            for block_id in block_ids:
                counts[block_id] += 1
        if counts != self._ref_counts:
            wrong = [i for i, count in enumerate(counts) if count != self._ref_counts[i]]
            faults.append(f"reference counts differ from the owners' for blocks {wrong[:5]}")
        if [i for i, count in enumerate(counts) if count == 0] != sorted([*self._stack, *self._free]):
            faults.append("the free list is not the list of blocks without an owner")
        if any(block_id in self._hash_of for block_id in self._stack):
            faults.append("a block with a hash is free among those without")
        cached = sum(1 for block_id in self._free if block_id in self._hash_of)
        if cached != self.num_cached:
            faults.append(f"{cached} free blocks have a hash, the counter says {self.num_cached}")
        listed = {
            block_id: block_hash
            for block_hash, known in self._blocks_of.items()
            for block_id in (known if isinstance(known, list) else [known])
        }
        if listed != self._hash_of:
            faults.append("the two directions of the hash index disagree")
        return faults

    def _forget(self, block_id: int) -> None:
        block_hash = self._hash_of.pop(block_id)
        self.num_cached -= 1
        known = self._blocks_of[block_hash]
        if isinstance(known, list) and len(known) > 1:
            known.remove(block_id)
        else:
            del self._blocks_of[block_hash]
