"""Block hashes: chained, for full blocks only, the same everywhere."""

from __future__ import annotations

import struct
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from tinyllm.engine.hashing import chain_hashes

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=40)


@given(tokens, tokens, st.integers(1, 7))
def test_equal_hashes_mean_an_equal_prefix(a: list[int], b: list[int], size: int) -> None:
    shared = a[: len(a) // 2]
    for position, (x, y) in enumerate(
        zip(chain_hashes(a, size), chain_hashes(shared + b, size), strict=False), start=1
    ):
        assert (x == y) == (a[: position * size] == (shared + b)[: position * size])


@given(tokens, st.integers(1, 7), st.data())
def test_a_chain_can_be_continued_at_any_block(ids: list[int], size: int, data: st.DataObject) -> None:
    whole = chain_hashes(ids, size)
    assert len(whole) == len(ids) // size
    cut = data.draw(st.integers(0, len(whole)))
    parent = whole[cut - 1] if cut else b""
    assert whole[:cut] + chain_hashes(ids[cut * size :], size, parent) == whole


def test_the_hash_is_a_truncated_sha256_of_parent_and_little_endian_ids() -> None:
    first = sha256(struct.pack("<2i", 1, 2)).digest()[:16]
    second = sha256(first + struct.pack("<2i", 3, 4)).digest()[:16]
    assert chain_hashes([1, 2, 3, 4, 5], 2) == [first, second]
    assert first.hex() == "34fb5c825de7ca4aea6e712f19d439c1"
