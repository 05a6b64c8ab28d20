"""Random numbers that depend on a seed and a counter and on nothing else."""

from __future__ import annotations

import hashlib
import struct

_MASK = (1 << 64) - 1


def uniform(seed: int, index: int) -> float:
    """The uniform number in [0, 1 − 2⁻⁵²] that decides output token `index` of a request with that seed.

    It is a hash of the two, not the next draw of a generator: neither the other requests of a batch, nor a
    preemption, nor the device can shift it. BLAKE2b makes the draws of neighbouring seeds unrelated.
    """
    digest = hashlib.blake2b(struct.pack("<QQ", seed & _MASK, index), digest_size=8).digest()
    # 52 bits: even 1 − 2⁻⁵² times a float64 total stays below that total.
    return (int.from_bytes(digest, "little") >> 12) * 2.0**-52
