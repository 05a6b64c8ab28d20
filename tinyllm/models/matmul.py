"""`x @ weight.T`, the product of which a decoder is made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyllm.models.memory import empty_in_large_pages

try:
    from tinyllm.models.formats import FLOAT32, FORMATS
    from tinyllm.models.formats.base import PANEL, PanelFormat
    from tinyllm.models.panels import Means, panel_matmul, take_rows
except ImportError:
    FORMATS = ()  # type: ignore[misc]

_PANELS_AT_A_TIME: Final = 64


def can_pack(weight: Tensor) -> bool:
    """Whether there are products that read this weight in panels: float32, on the CPU, where numba is installed."""
    return (
        bool(FORMATS) and weight.dim() == 2 and weight.device.type == "cpu" and weight.dtype == torch.float32
    )


def pack(weights: Sequence[nn.Parameter], is_compact: bool = True) -> PanelFormat:
    """Lay weights [n, k] out in panels, in place, all in the narrowest format that keeps every bit of them.

    Args:
        weights: that `can_pack`; rows that the last panel lacks are zero.
        is_compact: False for float32 in any case.
    """
    formats = FORMATS if is_compact else (FLOAT32,)
    return next(each for each in formats if _packed(weights, each))


def stacked(weights: Sequence[Tensor]) -> Tensor:
    """Packed weights of the same shape that lie one after the other, as one tensor [len(weights), ...], where they lie.

    Raises:
        ValueError: they do not lie so.
    """
    first = weights[0].detach()
    distance = first.numel() * first.element_size()
    if any(each.data_ptr() != first.data_ptr() + i * distance for i, each in enumerate(weights)):
        raise ValueError("these weights were not packed one after the other")
    return first.as_strided((len(weights), *first.shape), (first.numel(), *first.stride()))


def _packed(weights: Sequence[nn.Parameter], stored_as: PanelFormat) -> bool:
    """Whether the weights are in this format now; else they are as they were."""
    shapes = [stored_as.shape(-(-weight.shape[0] // PANEL), weight.shape[1]) for weight in weights]
    if not all(shapes):
        return False
    sizes = [math.prod(shape) for shape in shapes if shape]
    memory = torch.split(empty_in_large_pages((sum(sizes),), stored_as.dtype), sizes)
    packed = [part.view(shape) for part, shape in zip(memory, shapes, strict=True) if shape]
    for weight, panels in zip(weights, packed, strict=True):
        if not _fill(panels, weight, stored_as):
            return False
        if stored_as is FLOAT32:
            # This format takes every weight: those that are packed need not stay for another try.
            weight.data = panels
    for weight, panels in zip(weights, packed, strict=True):
        weight.data = panels
    return True


def _fill(panels: Tensor, weight: Tensor, stored_as: PanelFormat) -> bool:
    """Whether panels now hold a weight [n, k], every bit of it."""
    k = weight.shape[1]
    for first in range(0, len(panels), _PANELS_AT_A_TIME):
        part = panels[first : first + _PANELS_AT_A_TIME]
        rows = weight[first * PANEL : (first + len(part)) * PANEL]
        whole = functional.pad(rows, (0, 0, 0, len(part) * PANEL - len(rows)))
        encoded = stored_as.encode(whole.view(len(part), PANEL, k).transpose(1, 2).contiguous())
        if encoded is None:
            return False
        part.copy_(encoded)
    return True


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, out_features: int) -> Tensor:
    """`x @ weight.T + bias` of x [rows, k] and bias [out_features]: [rows, out_features].

    Args:
        weight: [out_features, k], or its panels.
    """
    if weight.dim() == 2:
        return functional.linear(x, weight, bias)
    product = torch.empty(len(x), len(weight) * PANEL)
    panel_matmul(x.contiguous().numpy(), weight.numpy(), product.numpy(), 0, Means.of(weight.dtype))
    product = product[:, :out_features]
    return product if bias is None else product.add_(bias)


def rows_of(weight: Tensor, indices: Tensor, width: int) -> Tensor:
    """Rows [n, width] of a weight, or of its panels, at int64 indices [n] within it."""
    if weight.dim() == 2:
        return functional.embedding(indices, weight)
    rows = torch.empty(len(indices), width)
    take_rows(weight.numpy(), indices.numpy(), rows.numpy(), Means.of(weight.dtype))
    return rows
