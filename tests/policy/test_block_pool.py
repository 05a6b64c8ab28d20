"""The pool against a list: the brute-force model of a free list is a list."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tinyllm.policy import BlockPool, PrefixCachingBlockPool

HASHES = ("a", "b", "c", "d")


class PoolMachine(RuleBasedStateMachine):
    """Owners hold lists of blocks. The model: a list of free ids, next one first, and a list of (block, hash)."""

    caching = True
    make_pool: type[BlockPool] = PrefixCachingBlockPool

    @initialize(num_blocks=st.integers(1, 10))
    def start(self, num_blocks: int) -> None:
        self.pool = self.make_pool(num_blocks)
        self.num_blocks = num_blocks
        self.free = list(range(num_blocks))
        self.registered: list[tuple[int, str]] = []
        self.owners: list[list[int]] = []

    def _owned(self, block: int) -> bool:
        return any(block in owner for owner in self.owners)

    def _pick(self, data: st.DataObject, choices: list[int]) -> int:
        return data.draw(st.sampled_from(choices))

    @rule(count=st.integers(0, 10))
    def get(self, count: int) -> None:
        if count > len(self.free):
            with pytest.raises(ValueError, match="free"):
                self.pool.get(count)
            return
        expected, self.free = self.free[:count], self.free[count:]
        self.registered = [(block, h) for block, h in self.registered if block not in expected]
        got = self.pool.get(count)
        assert got == expected
        if got:
            self.owners.append(got)

    @precondition(lambda self: self.owners and self.caching)
    @rule(data=st.data(), block_hash=st.sampled_from(HASHES))
    def register(self, data: st.DataObject, block_hash: str) -> None:
        known = {block for block, _ in self.registered}
        fresh = sorted({block for owner in self.owners for block in owner} - known)
        if fresh:
            block = self._pick(data, fresh)
            self.pool.register(block, block_hash)
            self.registered.append((block, block_hash))

    @precondition(lambda self: self.caching)
    @rule(block_hash=st.sampled_from(HASHES))
    def hit(self, block_hash: str) -> None:
        hits = self.pool.lookup_prefix([block_hash])
        if not hits:
            return
        [block] = hits
        self.pool.touch(hits)
        if block in self.free:
            self.free.remove(block)
        self.owners.append([block])

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        owner = self.owners.pop(self._pick(data, list(range(len(self.owners)))))
        self.pool.free(reversed(owner))
        hashed = {block for block, _ in self.registered}
        for block in reversed(owner):
            if not self._owned(block):
                self.free.insert(len(self.free) if block in hashed else 0, block)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool, free = self.pool, self.free
        assert pool.free_order() == free
        assert (pool.num_free, pool.num_used) == (len(free), self.num_blocks - len(free))
        assert pool.num_cached == sum(1 for block, _ in self.registered if block in free)
        for block_hash in HASHES:
            holders = [block for block, h in self.registered if h == block_hash]
            assert pool.lookup_prefix([block_hash]) == holders[:1]
        assert pool.check_integrity(self.owners) == []

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for owner in self.owners:
            self.pool.free(owner)
        assert sorted(self.pool.free_order()) == list(range(self.num_blocks))
        assert self.pool.num_used == 0
        assert self.pool.check_integrity([]) == []


class UncachedPoolMachine(PoolMachine):
    """Nothing is shared: hashes are not kept, so nothing is ever hit."""

    caching = False
    make_pool = BlockPool


TestPoolWithPrefixCache = PoolMachine.TestCase
TestPoolWithPrefixCache.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestPoolWithoutPrefixCache = UncachedPoolMachine.TestCase
TestPoolWithoutPrefixCache.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_with_a_prefix_cache_blank_blocks_go_first_then_never_used_ones_then_the_longest_free() -> None:
    pool = PrefixCachingBlockPool(8)
    first, second, blank = pool.get(2), pool.get(2), pool.get(2)
    for block in first + second:
        pool.register(block, f"content of {block}")
    pool.free(reversed(second))
    pool.free(reversed(blank))
    pool.free(reversed(first))
    assert pool.free_order() == [4, 5, 6, 7, 3, 2, 1, 0]
    assert pool.get(5) == [4, 5, 6, 7, 3]
    assert pool.num_cached == 3


def test_without_a_prefix_cache_the_block_freed_last_goes_first_and_never_used_ones_last() -> None:
    pool = BlockPool(6)
    first, second = pool.get(2), pool.get(2)
    pool.free(reversed(first))
    pool.free(reversed(second))
    assert pool.free_order() == [2, 3, 0, 1, 4, 5]
    assert pool.get(5) == [2, 3, 0, 1, 4]


def test_a_failed_get_changes_no_count_no_order_and_no_hash() -> None:
    pool = PrefixCachingBlockPool(4)
    blocks = pool.get(3)
    for block, block_hash in zip(blocks, "abc", strict=True):
        pool.register(block, block_hash)
    pool.free(reversed(blocks[1:]))
    before = (pool.free_order(), pool.num_free, pool.num_used, pool.num_cached)
    with pytest.raises(ValueError, match="4 blocks asked for, 3 free"):
        pool.get(4)
    assert (pool.free_order(), pool.num_free, pool.num_used, pool.num_cached) == before
    assert [pool.lookup(h) for h in "abc"] == blocks


def test_a_hit_without_an_owner_leaves_the_free_list_from_its_middle() -> None:
    pool = PrefixCachingBlockPool(3)
    blocks = pool.get(3)
    for block, block_hash in zip(blocks, "abc", strict=True):
        pool.register(block, block_hash)
    pool.free(blocks)
    assert (pool.free_order(), pool.num_cached) == ([0, 1, 2], 3)
    pool.touch([1])
    assert (pool.free_order(), pool.num_cached, pool.num_used) == ([0, 2], 2, 1)


def test_a_block_loses_its_hash_at_the_moment_it_is_handed_out_again_and_not_before() -> None:
    pool = PrefixCachingBlockPool(1)
    [block] = pool.get(1)
    pool.register(block, "a")
    pool.free([block])
    assert pool.lookup("a") == block
    pool.get(1)
    assert pool.lookup("a") is None


def test_of_two_blocks_with_equal_content_the_older_is_hit_and_the_other_survives_its_eviction() -> None:
    pool = PrefixCachingBlockPool(2)
    older, newer = pool.get(2)
    pool.register(older, "a")
    pool.register(newer, "a")
    pool.free([older, newer])
    assert pool.lookup("a") == older
    assert pool.get(1) == [older]
    assert pool.lookup("a") == newer
    assert pool.get(1) == [newer]
    assert pool.lookup("a") is None


def test_a_prefix_freed_from_its_end_is_evicted_from_its_end() -> None:
    pool = PrefixCachingBlockPool(3)
    prefix = pool.get(3)
    for block, block_hash in zip(prefix, "abc", strict=True):
        pool.register(block, block_hash)
    pool.free(reversed(prefix))
    lost = []
    for _ in range(3):
        pool.get(1)
        lost.append([h for h in "abc" if pool.lookup(h) is None])
    assert lost == [["c"], ["b", "c"], ["a", "b", "c"]]


def test_a_million_blocks_cost_nothing_until_they_are_used() -> None:
    pool = BlockPool(10**12)
    assert pool.get(3) == [0, 1, 2]
    assert pool.num_free == 10**12 - 3


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda pool: pool.touch([0]), "reference counts differ"),
        (lambda pool: pool.free([0]), "reference counts differ"),
        (lambda pool: pool._free.pop(1), "not the list of blocks without an owner"),
        (lambda pool: pool._hash_of.pop(1), "directions of the hash index disagree"),
        (lambda pool: setattr(pool, "num_cached", 5), "the counter says 5"),
    ],
)
def test_the_integrity_check_finds_every_kind_of_damage(
    damage: Callable[[BlockPool], object], complaint: str
) -> None:
    pool = PrefixCachingBlockPool(3)
    blocks = pool.get(2)
    pool.register(blocks[1], "a")
    pool.free(blocks[1:])
    assert pool.check_integrity([[0]]) == []
    damage(pool)
    assert any(complaint in fault for fault in pool.check_integrity([[0]]))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda pool: pool.free([0]), "not the list of blocks without an owner"),
        (lambda pool: pool._stack.pop(), "not the list of blocks without an owner"),
    ],
)
def test_the_integrity_check_of_an_unshared_pool_finds_damage(
    damage: Callable[[BlockPool], object], complaint: str
) -> None:
    pool = BlockPool(3)
    pool.free(pool.get(2)[1:])
    assert pool.check_integrity([[0]]) == []
    assert "two owners" in pool.check_integrity([[0], [0]])[0]
    damage(pool)
    assert any(complaint in fault for fault in pool.check_integrity([[0]]))
