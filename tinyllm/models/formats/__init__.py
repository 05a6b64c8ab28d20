"""The formats of packed weights, and the narrowest one that keeps every bit."""

from __future__ import annotations

from typing import Final

import torch

from tinyllm.models.formats.base import PanelFormat
from tinyllm.models.formats.bfloat16 import BFloat16
from tinyllm.models.formats.codes import BlockCodes
from tinyllm.models.formats.float32 import Float32

FLOAT32: Final = Float32()

FORMATS: Final[tuple[PanelFormat, ...]] = (BlockCodes(), BFloat16(), FLOAT32)
"""Fewest bytes first; the last one keeps any weight."""


def format_of(dtype: torch.dtype) -> PanelFormat:
    """The format whose memory is of that type. Raises `StopIteration` for none."""
    return next(each for each in FORMATS if each.dtype == dtype)
