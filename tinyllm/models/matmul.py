"""`x @ weight.T`, the product of which a decoder is made."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

try:
    from tinyllm.models.panels import pack, panel_matmul, use_threads
except ImportError:
    pack = None  # type: ignore[assignment]


def packed(weight: Tensor) -> Tensor | None:
    """A weight [n, k] in the panels that compiled products read; None where there are none such.

    They are for float32 on the CPU, where numba is installed.
    """
    if pack is None or weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    panels: Tensor = pack(weight)
    return panels


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, out_features: int) -> Tensor:
    """`x @ weight.T + bias` of x [rows, k] and bias [out_features]: [rows, out_features].

    Args:
        weight: [out_features, k], or what `packed` made of that.
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
    """Rows [n, k] of a weight, which may be packed, at int64 indices [n]."""
    if weight.dim() == 2:
        return functional.embedding(indices, weight)
    width = weight.shape[2]
    return weight[indices // width, :, indices % width]
