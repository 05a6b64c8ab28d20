"""The KV block manager against brute force: every block remembers its owners and the prefix that it holds."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tinyllm.policy import KVBlockManager, Request

BLOCK = 4
PREFIXES = [("a",), ("b",), ("a", "a"), ("a", "b"), ("a", "a", "a"), ("a", "b", "a"), ("a", "a", "b")]


def request(request_id: str, num_tokens: int, content: str = "") -> Request:
    """A request whose full blocks hold the letters of `content`, chained: a hash is the prefix up to there."""
    hashes = [tuple(content[: i + 1]) for i in range(min(len(content), num_tokens // BLOCK))]
    return Request(request_id, num_tokens, 8, block_hashes=hashes)


class ManagerMachine(RuleBasedStateMachine):
    """The model: lists of owners and of contents by block id, and the free ids in order of eviction."""

    @initialize(num_blocks=st.integers(2, 9), watermark=st.sampled_from([0.0, 0.25, 0.5]))
    def start(self, num_blocks: int, watermark: float) -> None:
        self.kv = KVBlockManager(num_blocks, BLOCK, enable_prefix_caching=True, watermark=watermark)
        self.kept_free = int(watermark * num_blocks)
        self.free = list(range(num_blocks))
        self.owners: list[list[str]] = [[] for _ in range(num_blocks)]
        self.held: list[tuple[int, Any]] = []  # (block, prefix), oldest first
        self.residents: list[Request] = []
        self.num_requests = 0

    def _hits(self, new: Request) -> list[int]:
        hits = []
        for prefix in new.block_hashes[: (new.num_tokens - 1) // BLOCK]:
            holders = [block for block, held in self.held if held == prefix]
            if not holders:
                break
            hits.append(holders[0])
        return hits

    def _take(self, count: int, owner: str) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        self.held = [(block, held) for block, held in self.held if block not in taken]
        for block in taken:
            self.owners[block].append(owner)
        return taken

    def _snapshot(self) -> tuple[Any, ...]:
        pool = self.kv.pool
        tables = [(r.request_id, list(r.block_ids), r.num_slots) for r in self.residents]
        return (
            pool.free_order(),
            pool.num_cached,
            [pool.lookup(prefix) for prefix in PREFIXES],
            [pool.num_owners(block) for block, owners in enumerate(self.owners) if owners],
            tables,
        )

    @rule(
        num_tokens=st.integers(1, 18),
        content=st.text("ab", min_size=4, max_size=4),
        reserve=st.integers(0, 8),
        waive=st.booleans(),
    )
    def admit(self, num_tokens: int, content: str, reserve: int, waive: bool) -> None:
        new = request(f"r{self.num_requests}", num_tokens, content)
        self.num_requests += 1
        hits = self._hits(new)
        cached = self.kv.find_cached_blocks(new)
        assert cached == hits
        assert len(cached) <= (num_tokens - 1) // BLOCK
        num_slots = num_tokens + reserve
        num_new = -(-num_slots // BLOCK) - len(hits)
        revived = [block for block in hits if block in self.free]
        fits = num_new + len(revived) <= len(self.free) - (0 if waive else self.kept_free)
        before = self._snapshot()
        assert self.kv.admit(new, cached, num_slots, waive_watermark=waive) is fits
        if not fits:
            assert self._snapshot() == before
            assert (new.block_ids, new.num_slots) == ([], 0)
            return
        self.free = [block for block in self.free if block not in revived]
        for block in hits:
            self.owners[block].append(new.request_id)
        assert new.block_ids == hits + self._take(num_new, new.request_id)
        new.num_computed_tokens = new.num_cached_tokens = len(hits) * BLOCK
        self.residents.append(new)

    @precondition(lambda self: self.residents)
    @rule(data=st.data(), extra=st.integers(1, 12))
    def grow(self, data: st.DataObject, extra: int) -> None:
        resident = data.draw(st.sampled_from(self.residents))
        num_slots = resident.num_computed_tokens + extra
        missing = max(0, -(-num_slots // BLOCK) - len(resident.block_ids))
        before, table = self._snapshot(), list(resident.block_ids)
        assert self.kv.allocate_slots(resident, num_slots) is (missing <= len(self.free))
        if missing > len(self.free) or missing == 0:
            assert self._snapshot() == before
        else:
            assert resident.block_ids == table + self._take(missing, resident.request_id)

    @precondition(lambda self: self.residents)
    @rule(data=st.data(), count=st.integers(1, 9))
    def compute(self, data: st.DataObject, count: int) -> None:
        resident = data.draw(st.sampled_from(self.residents))
        end = min(resident.num_computed_tokens + count, resident.num_slots, resident.num_tokens)
        full = range(resident.num_computed_tokens // BLOCK, end // BLOCK)
        resident.num_computed_tokens = end
        self.kv.register_blocks(resident, resident.num_computed_tokens)
        for position in full:
            if position < len(resident.block_hashes):
                self.held.append((resident.block_ids[position], resident.block_hashes[position]))

    @precondition(lambda self: self.residents)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        resident = self.residents.pop(data.draw(st.integers(0, len(self.residents) - 1)))
        hashed = {block for block, _ in self.held}
        for block in reversed(resident.block_ids):
            self.owners[block].remove(resident.request_id)
            if not self.owners[block]:
                self.free.insert(len(self.free) if block in hashed else 0, block)
        self.kv.free(resident)
        assert (resident.block_ids, resident.num_slots) == ([], 0)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "kv"):
            return
        pool = self.kv.pool
        assert pool.free_order() == self.free
        assert pool.num_cached == sum(1 for block, _ in self.held if block in self.free)
        for prefix in PREFIXES:
            holders = [block for block, held in self.held if held == prefix]
            assert pool.lookup(prefix) == (holders[0] if holders else None)
        for block, owners in enumerate(self.owners):
            assert not owners or pool.num_owners(block) == len(owners)
        assert self.kv.check_integrity(self.residents) == []

    def teardown(self) -> None:
        for resident in getattr(self, "residents", []):
            self.kv.free(resident)
        if hasattr(self, "kv"):
            assert self.kv.pool.num_used == 0
            assert self.kv.pool.num_free == self.kv.pool.num_blocks


TestManager = ManagerMachine.TestCase
TestManager.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def manager(num_blocks: int, **options: Any) -> KVBlockManager:
    return KVBlockManager(num_blocks, BLOCK, enable_prefix_caching=True, **options)


def admit(kv: KVBlockManager, new: Request, *, waive_watermark: bool = True) -> bool:
    cached = kv.find_cached_blocks(new)
    if not kv.admit(new, cached, new.num_tokens, waive_watermark=waive_watermark):
        return False
    new.num_computed_tokens = len(cached) * BLOCK
    return True


def compute_all(kv: KVBlockManager, resident: Request) -> None:
    resident.num_computed_tokens = resident.num_tokens
    kv.register_blocks(resident, resident.num_computed_tokens)


def test_hits_without_an_owner_count_in_what_an_admission_needs() -> None:
    kv = manager(4)
    first = request("first", 9, "ab")
    assert admit(kv, first)
    compute_all(kv, first)
    kv.free(first)
    # Two cached blocks and two others are free. Five blocks are needed, two of them hits: still one too few.
    again = request("again", 17, "ab")
    hits = kv.find_cached_blocks(again)
    assert (len(hits), kv.num_blocks_to_admit(hits, 17)) == (2, 5)
    order = kv.pool.free_order()
    assert not admit(kv, again)
    assert (kv.pool.free_order(), kv.pool.num_cached) == (order, 2)


def test_hits_with_an_owner_cost_no_free_block() -> None:
    kv = manager(4)
    first, second = request("first", 9, "ab"), request("second", 12, "abb")
    assert admit(kv, first)
    compute_all(kv, first)
    assert kv.num_blocks_to_admit(kv.find_cached_blocks(second), 12) == 1
    assert admit(kv, second)
    assert second.block_ids[:2] == first.block_ids[:2]
    kv.free(first)
    assert kv.pool.num_used == 3


def test_an_admission_never_evicts_the_blocks_that_it_hits() -> None:
    kv = manager(3)
    first = request("first", 9, "ab")
    assert admit(kv, first)
    compute_all(kv, first)
    kv.free(first)
    again = request("again", 9, "ab")
    cached = kv.find_cached_blocks(again)
    assert admit(kv, again)
    assert again.block_ids[:2] == cached
    assert [kv.pool.lookup(h) for h in again.block_hashes] == cached


def test_a_block_is_findable_only_once_its_tokens_are_computed() -> None:
    kv = manager(8)
    first = request("first", 12, "aab")
    assert admit(kv, first)
    found = []
    for num_computed in (0, 3, 4, 7, 11, 12):
        first.num_computed_tokens = num_computed
        kv.register_blocks(first, first.num_computed_tokens)
        found.append(len(kv.find_cached_blocks(request("second", 16, "aab"))))
    assert found == [0, 0, 1, 1, 2, 3]


def test_a_full_hit_still_leaves_the_block_of_the_last_token_to_compute() -> None:
    kv = manager(8)
    first = request("first", 8, "ab")
    assert admit(kv, first)
    compute_all(kv, first)
    assert [len(kv.find_cached_blocks(request("x", n, "ab"))) for n in (4, 5, 8, 9)] == [0, 1, 1, 2]


def test_a_hole_in_the_prefix_ends_the_hits() -> None:
    kv = manager(3)
    first = request("first", 12, "aab")
    assert admit(kv, first)
    compute_all(kv, first)
    kv.free(first)
    kv.pool.touch(first_two := [kv.pool.lookup(h) for h in first.block_hashes[:2]])  # type: ignore[arg-type]
    kv.pool.get(1)
    assert kv.find_cached_blocks(request("again", 13, "aab")) == first_two


def test_the_watermark_stays_free_unless_it_is_waived() -> None:
    kv = manager(10, watermark=0.25)
    assert kv.watermark_blocks == 2
    assert not admit(kv, request("nine", 36), waive_watermark=False)
    assert admit(kv, eight := request("eight", 32), waive_watermark=False)
    assert not admit(kv, request("one", 1), waive_watermark=False)
    # A resident's growth may use what the watermark keeps from admissions.
    assert kv.allocate_slots(eight, 40)
    assert kv.pool.num_free == 0


def test_without_a_prefix_cache_nothing_is_ever_found() -> None:
    kv = KVBlockManager(8, BLOCK)
    assert admit(kv, request("first", 12, "aab"))
    assert kv.find_cached_blocks(request("again", 12, "aab")) == []
