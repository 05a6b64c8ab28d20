"""Weights that were trained or saved in bfloat16: the upper half of a float32 number, whose lower half is zero."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from llvmlite import ir
from torch import Tensor

from tinyllm.models.formats.base import GROUP, PANEL, PanelFormat
from tinyllm.models.vectors import INT, LANES, VECTOR, at, load

_HALF: Any = ir.VectorType(ir.IntType(16), LANES)
_WHOLE: Any = ir.VectorType(INT, LANES)
_BITS = 16


class BFloat16(PanelFormat):
    """Two bytes a weight; products are float32 all the same."""

    name: ClassVar[str] = "bfloat16"
    dtype: ClassVar[torch.dtype] = torch.int16
    group_bytes: ClassVar[int] = 2 * GROUP * PANEL

    def shape(self, num_panels: int, k: int) -> tuple[int, int, int] | None:
        return (num_panels, k, PANEL) if k % GROUP == 0 else None

    def encode(self, panels: Tensor) -> Tensor | None:
        bits = panels.view(torch.int32)
        if (bits & ((1 << _BITS) - 1)).any():
            return None
        return (bits >> _BITS).to(torch.int16)

    def open(self, builder: Any, panel: Any, group: Any, lane: int) -> Any:
        return at(builder, panel, group, self.group_bytes, 2 * lane)

    def numbers(self, builder: Any, opened: Any, channel: Any) -> Any:
        half = load(builder, at(builder, opened, channel, 2 * PANEL), _HALF)
        whole = builder.shl(builder.zext(half, _WHOLE), ir.Constant(_WHOLE, [_BITS] * LANES))
        return builder.bitcast(whole, VECTOR)
