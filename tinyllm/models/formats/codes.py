"""Weights that were quantized once: in each block a few evenly spaced numbers, which a byte can name.

Checkpoints that were made of a GGUF file are so (its types Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0): a block is 32 neighbours
of a row, each of them `step · code + start` with a float16 step. Read back to the last bit (but −0 as 0), never rounded
anew.
Source: ggml, `dequantize_row_*`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final

import torch
from llvmlite import ir
from torch import Tensor

from tinyllm.models.formats.base import GROUP, PANEL, PanelFormat
from tinyllm.models.vectors import BYTE, INT, LANES, VECTOR, at, fused, load, word

_BLOCK: Final = 32
_CODES: Final = _BLOCK * PANEL
_FLOATS: Final = 4 * PANEL
_BYTES: Final = _CODES + 2 * _FLOATS
"""Of a block in memory: codes int8 [_BLOCK, PANEL], steps float32 [PANEL], starts float32 [PANEL]."""

_LEVELS_FROM_START: Final = (15, 31)
"""Steps from the smallest number of a block to the largest, where the code of the smallest is 0."""

_CODES_OF_LARGEST: Final = (127, -127, -8, -16)
"""The code of what is largest in size, where a code of 0 means 0."""


class BlockCodes(PanelFormat):
    """A byte a weight, and a step and a start for each block of 32."""

    name: ClassVar[str] = "codes"
    dtype: ClassVar[torch.dtype] = torch.int8
    group_bytes: ClassVar[int] = _BYTES * GROUP // _BLOCK
    registers: ClassVar[int] = 2

    def shape(self, num_panels: int, k: int) -> tuple[int, int, int] | None:
        return (num_panels, k // _BLOCK, _BYTES) if k % _BLOCK == 0 else None

    def encode(self, panels: Tensor) -> Tensor | None:
        num_panels, k, _ = panels.shape
        blocks = panels.view(num_panels, k // _BLOCK, _BLOCK, PANEL)
        coded = torch.empty(num_panels, k // _BLOCK, _BYTES, dtype=torch.int8)
        missing = torch.ones(num_panels, k // _BLOCK, 1, PANEL, dtype=torch.bool)
        numbers, *floats = torch.split(coded, [_CODES, _FLOATS, _FLOATS], dim=2)
        parts = (numbers.view(blocks.shape), *(each.view(torch.float32)[:, :, None] for each in floats))
        for guess in sorted(_GUESSES, key=lambda guess: -_share_found(blocks[:1], guess)):
            codes, step, start, found = _coded(blocks, guess)
            found &= missing
            for kept, new in zip(parts, (codes.to(torch.int8), step, start), strict=True):
                kept.copy_(torch.where(found, new, kept))
            missing &= ~found
            if not missing.any():
                return coded
        return None

    def open(self, builder: Any, panel: Any, group: Any, lane: int) -> Any:
        groups = _BLOCK // GROUP
        block = at(builder, panel, builder.sdiv(group, word(groups)), _BYTES)
        codes = at(builder, block, builder.srem(group, word(groups)), GROUP * PANEL, lane)
        floats = (_CODES + 4 * lane, _CODES + _FLOATS + 4 * lane)
        return codes, *(load(builder, builder.gep(block, [word(place)]), VECTOR) for place in floats)

    def numbers(self, builder: Any, opened: Any, channel: Any) -> Any:
        codes, step, start = opened
        code = load(builder, at(builder, codes, channel, PANEL), ir.VectorType(BYTE, LANES))
        value = builder.sitofp(builder.sext(code, ir.VectorType(INT, LANES)), VECTOR)
        return fused(builder, value, step, start)


def _coded(blocks: Tensor, guess: _Guess) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes, step and start of blocks [n, blocks, _BLOCK, PANEL] by one guess, and whether each is what it was."""
    step, start = guess(blocks)
    step = step.half().float()
    codes = ((blocks - start) / step).round_().nan_to_num_(0).clamp_(-128, 127)
    return codes, step, start, (codes * step + start == blocks).all(2, keepdim=True)


def _share_found(blocks: Tensor, guess: _Guess) -> float:
    return float(_coded(blocks, guess)[3].float().mean())


def _from_start(blocks: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    lowest, highest = blocks.amin(2, keepdim=True), blocks.amax(2, keepdim=True)
    return (highest - lowest) / levels, lowest


def _from_zero(blocks: Tensor, code: int) -> tuple[Tensor, Tensor]:
    largest = blocks.gather(2, blocks.abs().argmax(2, keepdim=True))
    return largest / code, torch.zeros_like(largest)


_Guess = Callable[[Tensor], tuple[Tensor, Tensor]]

_GUESSES: Final[tuple[_Guess, ...]] = (
    *(partial(_from_start, levels=levels) for levels in _LEVELS_FROM_START),
    *(partial(_from_zero, code=code) for code in _CODES_OF_LARGEST),
)
"""Steps and starts [n, blocks, 1, PANEL] that the types of GGUF would have given to blocks of these numbers."""
