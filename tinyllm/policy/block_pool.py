"""The pool of KV blocks where nothing is shared: a stack of free ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tinyllm.policy.request import BlockHash


class BlockPool:
    """Fixed-size blocks with ids 0 … num_blocks − 1, each free or owned by one request.

    A free block holds nothing of worth, so the one freed last goes first; never-used blocks come at the very
    end and cost a counter, not an object, in a pool of a million. `PrefixCachingBlockPool` shares blocks.
    """

    num_cached = 0
    """Blocks without an owner whose content can still be hit."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._num_touched = 0
        self._stack: list[int] = []

    @property
    def num_free(self) -> int:
        """Blocks without an owner."""
        return self.num_blocks - self._num_touched + len(self._stack)

    @property
    def num_used(self) -> int:
        """Blocks with an owner."""
        return self._num_touched - len(self._stack)

    def num_owners(self, block_id: int) -> int:
        """Owners of an owned block: freeing it this often makes it free."""
        return 1

    def count_free(self, block_ids: Sequence[int]) -> int:
        """How many of these blocks, found by `lookup_prefix`, have no owner."""
        return 0

    def lookup_prefix(self, block_hashes: Iterable[BlockHash]) -> list[int]:
        """Blocks with these contents, up to the first that is not cached: none where nothing is shared."""
        return []

    def touch(self, block_ids: Iterable[int]) -> None:
        """Add an owner to blocks found by `lookup_prefix`."""

    def register(self, block_id: int, block_hash: BlockHash) -> None:
        """Make a block findable by the hash of its content, where blocks are shared."""

    def get(self, num_blocks: int) -> list[int]:
        """Take `num_blocks` free blocks, the next ones of `free_order`.

        Raises:
            ValueError: fewer are free; the pool is unchanged. Callers look at `num_free` first.
        """
        self._check_free(num_blocks)
        kept = max(0, len(self._stack) - num_blocks)
        blocks = self._stack[kept:]
        blocks.reverse()
        del self._stack[kept:]
        if len(blocks) < num_blocks:
            blocks += self._get_untouched(num_blocks - len(blocks))
        return blocks

    def free(self, block_ids: Iterable[int]) -> None:
        """Give blocks back."""
        self._stack.extend(block_ids)

    def free_order(self) -> list[int]:
        """The ids of the free blocks, next one first, for tests and debugging. O(num_blocks)."""
        return [*reversed(self._stack), *range(self._num_touched, self.num_blocks)]

    def check_integrity(self, owned: Sequence[Sequence[int]]) -> list[str]:
        """Recount everything from scratch against the blocks that requests own; return what is wrong."""
        taken = sorted(block_id for block_ids in owned for block_id in block_ids)
        faults = []
        if len(set(taken)) != len(taken):
            faults.append("a block has two owners")
        if sorted([*taken, *self._stack]) != list(range(self._num_touched)):
            faults.append("the free list is not the list of blocks without an owner")
        return faults

    def _check_free(self, num_blocks: int) -> None:
        if num_blocks > self.num_free:
            raise ValueError(f"{num_blocks} blocks asked for, {self.num_free} free")

    def _get_untouched(self, num_blocks: int) -> list[int]:
        first = self._num_touched
        self._num_touched += num_blocks
        return list(range(first, first + num_blocks))
