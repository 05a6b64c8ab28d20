"""Weights as they are: nothing to prepare, but to have them brought from memory in time."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from tinyllm.models.formats.base import GROUP, PANEL, PanelFormat
from tinyllm.models.vectors import at, prefetch


class Float32(PanelFormat):
    """Four bytes a weight, read where they lie."""

    name: ClassVar[str] = "float32"
    dtype: ClassVar[torch.dtype] = torch.float32

    def shape(self, num_panels: int, k: int) -> tuple[int, int, int]:
        return num_panels, k, PANEL

    def encode(self, panels: Tensor) -> Tensor:
        return panels

    def prepare(self, builder: Any, source: Any, group: Any, target: Any) -> None:
        size = 4 * GROUP * PANEL
        prefetch(builder, at(builder, source, group, size), size)
