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

MEDIUM: Final = 192
"""Rows up to which the library is faster with the weights on the left, where its long side should be."""

ALIGNED: Final = 16
"""A row of the product begins at a multiple of so many numbers, a cache line: odd lengths halve its speed."""


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x @ weight.T + bias` of x [rows, k], weight [n, k] and bias [n]: [rows, n], which may be a transposed view.

    On a CPU, in float32, a few rows go through `small_matmul`, and some more through `weight @ x.T`:
    docs/performance.md has the figures.
    """
    is_known = weight.device.type == "cpu" and weight.dtype == x.dtype == torch.float32
    if not is_known or len(x) > MEDIUM:
        return functional.linear(x, weight, bias)
    if len(x) > SMALL or small_matmul is None:
        product = transposed_product(x, weight)
    else:
        product = torch.empty(len(x), len(weight))
        use_threads(torch.get_num_threads())
        small_matmul(x.contiguous().numpy(), weight.numpy(), product.numpy())
    return product if bias is None else product + bias


def transposed_product(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T` as the transposed view of `weight @ x.T`."""
    width = -(-len(x) // ALIGNED) * ALIGNED
    product = torch.empty(len(weight), width)[:, : len(x)]
    return torch.mm(weight, x.t(), out=product).t()
