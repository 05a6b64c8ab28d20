"""Memory of the CPU in large pages: what is read from end to end in every step should not be looked up page by page."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

_ADVICE: Final = getattr(mmap, "MADV_HUGEPAGE", None)
_LEAST: Final = 1 << 20
"""Bytes from which memory is asked of the system and goes back to it when let go, past any allocator's store."""


def empty_in_large_pages(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor on the CPU, in large pages where the system has them, and in ordinary ones elsewhere.

    Its memory counts as used once it is written to.
    """
    size = math.prod(shape) * dtype.itemsize
    if _ADVICE is None or size < _LEAST:
        return torch.empty(*shape, dtype=dtype, device="cpu")
    # Private, for only such memory is given large pages.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(_ADVICE)
    except OSError:  # a kernel built without them
        memory.close()
        return torch.empty(*shape, dtype=dtype, device="cpu")
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape)).view(*shape)
