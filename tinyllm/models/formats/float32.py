"""Weights as they are."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from tinyllm.models.formats.base import GROUP, PANEL, PanelFormat
from tinyllm.models.vectors import VECTOR, at, load


class Float32(PanelFormat):
    """Four bytes a weight."""

    name: ClassVar[str] = "float32"
    dtype: ClassVar[torch.dtype] = torch.float32
    group_bytes: ClassVar[int] = 4 * GROUP * PANEL

    def shape(self, num_panels: int, k: int) -> tuple[int, int, int]:
        return num_panels, k, PANEL

    def encode(self, panels: Tensor) -> Tensor:
        return panels

    def open(self, builder: Any, panel: Any, group: Any, lane: int) -> Any:
        return at(builder, panel, group, self.group_bytes, 4 * lane)

    def numbers(self, builder: Any, opened: Any, channel: Any) -> Any:
        return load(builder, at(builder, opened, channel, 4 * PANEL), VECTOR)
