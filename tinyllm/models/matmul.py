"""`x @ weight.T`, the product of which a decoder is made, in the way that is fastest for its sizes."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

try:
    from tinyllm.models.small_matmul import small_matmul, use_threads
except ImportError:
    small_matmul = None

SMALL: Final = 16
"""Rows of x up to which reading the weights once, with a kernel of our own, beats the library's product."""


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x @ weight.T + bias` of x [rows, k], weight [n, k] and bias [n]: [rows, n], which may be a transposed view.

    On a CPU, in float32, a few rows go through `small_matmul`, and more through `weight @ x.T`, whose long side is the
    library's favourite: docs/performance.md has the figures.
    """
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or x.dtype != torch.float32:
        return functional.linear(x, weight, bias)
    if len(x) > SMALL or small_matmul is None:
        product = torch.mm(weight, x.t()).t()
    else:
        product = torch.empty(len(x), len(weight))
        use_threads(torch.get_num_threads())
        small_matmul(x.contiguous().numpy(), weight.numpy(), product.numpy())
    return product if bias is None else product + bias
