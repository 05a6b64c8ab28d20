"""`x @ weight.T`, the product of which a decoder is made."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from tinyllm.models.memory import empty_in_large_pages

try:
    from tinyllm.models.panels import pack, panel_matmul, panels_shape, take_rows, use_threads
except ImportError:
    pack = None  # type: ignore[assignment]


def can_pack(weight: Tensor) -> bool:
    """Whether there are products that read this weight in panels: float32, on the CPU, where numba is installed."""
    return (
        pack is not None
        and weight.dim() == 2
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
    )


class PanelMemory:
    """Room for some weights in panels, one after the other, in large pages.

    Args:
        weights: those that will be packed, each once and in any order.
    """

    def __init__(self, *weights: Tensor) -> None:
        self._free = empty_in_large_pages(
            (sum(math.prod(panels_shape(*weight.shape)) for weight in weights),), torch.float32
        )

    def pack(self, weight: Tensor) -> Tensor:
        """The panels of a weight [n, k]: [⌈n / 16⌉, k, 16]."""
        shape = panels_shape(*weight.shape)
        taken, self._free = torch.tensor_split(self._free, [math.prod(shape)])
        panels = taken.view(shape)
        pack(weight, panels)
        return panels


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, out_features: int) -> Tensor:
    """`x @ weight.T + bias` of x [rows, k] and bias [out_features]: [rows, out_features].

    Args:
        weight: [out_features, k], or its panels.
    """
    if weight.dim() == 2:
        return functional.linear(x, weight, bias)
    num_panels, _, width = weight.shape
    product = torch.empty(len(x), num_panels * width)
    use_threads(torch.get_num_threads())
    panel_matmul(x.contiguous().numpy(), weight.numpy(), product.numpy(), 0)
    product = product[:, :out_features]
    return product if bias is None else product.add_(bias)


def rows_of(weight: Tensor, indices: Tensor) -> Tensor:
    """Rows [n, k] of a weight, or of its panels, at int64 indices [n] within it."""
    if weight.dim() == 2:
        return functional.embedding(indices, weight)
    rows = torch.empty(len(indices), weight.shape[1])
    take_rows(weight.numpy(), indices.numpy(), rows.numpy())
    return rows
