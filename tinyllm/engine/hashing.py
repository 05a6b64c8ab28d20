"""Identity of KV content in real mode: chained hashes of the token ids of full blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

HASH_BYTES: Final = 16
"""128 bits: among a billion blocks, two different ones share a hash with a probability below 1e-20."""


def chain_hashes(token_ids: Sequence[int], block_size: int, parent: bytes = b"") -> list[bytes]:
    """One hash a full block: the truncated SHA-256 of its parent's hash and its token ids.

    Equal hashes mean an equal prefix up to there. The same in every process and on every machine.

    Args:
        token_ids: from a block's start on; what does not fill a block is left out.
        block_size: tokens in a block.
        parent: hash of the block before, empty at the start of a prompt.
    """
    num_full = len(token_ids) // block_size * block_size
    data = np.asarray(token_ids[:num_full], dtype="<i4").tobytes()
    width = 4 * block_size
    hashes = []
    for start in range(0, len(data), width):
        parent = hashlib.sha256(parent + data[start : start + width]).digest()[:HASH_BYTES]
        hashes.append(parent)
    return hashes
