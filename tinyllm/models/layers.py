"""The few layers that the families share. Their parameters start empty and never require a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyllm.models.config import ConfigFile
from tinyllm.models.matmul import multiply, rows_of
from tinyllm.models.memory import empty_in_large_pages

ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}
"""Activation functions under the names of `hidden_act` (LLaMA, Qwen) and `activation_function` (GPT-2)."""

_VOCABULARY_SLICE: Final = 8192


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function of that name. Raises `KeyError` for one that `check_activation` would have refused."""
    return ACTIVATIONS[name]


def check_activation(file: ConfigFile, key: str, default: str) -> str:
    """The name of an activation in a config file. Raises `InputError`, listing those supported, for another."""
    name = file.text(key, default)
    if name not in ACTIVATIONS:
        raise file.error(f"{key} {name!r} is not supported", f"use one of {', '.join(ACTIVATIONS)}")
    return name


def empty_parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """An uninitialised parameter on the current default device; the loader fills it."""
    on_cpu = torch.get_default_device().type == "cpu"
    values = empty_in_large_pages(shape, dtype) if on_cpu else torch.empty(*shape, dtype=dtype)
    return nn.Parameter(values, requires_grad=False)


class Linear(nn.Module):
    """`x @ weight.T + bias`, weight `[out_features, in_features]`: the only place where a model multiplies by weights.

    With `allocate=False` the weight is a placeholder without memory, for a matrix tied to another one.

    Attributes:
        weight: `[out_features, in_features]`, until `DecoderModel.pack` lays it out for compiled products.
    """

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool, dtype: torch.dtype, allocate: bool = True
    ) -> None:
        super().__init__()
        self.out_features = out_features
        shape = (out_features, in_features) if allocate else (0, in_features)
        self.weight = empty_parameter(*shape, dtype=dtype)
        self.bias = empty_parameter(out_features, dtype=dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return multiply(x, self.weight, self.bias, self.out_features)


class Embedding(nn.Module):
    """A table of rows `[num_rows, width]`, looked up by int64 index; tied to a head, it may be packed as that is."""

    def __init__(self, num_rows: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.width = width
        self.weight = empty_parameter(num_rows, width, dtype=dtype)

    def forward(self, indices: Tensor) -> Tensor:
        return rows_of(self.weight, indices, self.width)


class RMSNorm(nn.Module):
    """Root mean square norm over the last axis (Zhang and Sennrich 2019), weighted and computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = empty_parameter(width, dtype=torch.float32)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


class LayerNorm(nn.Module):
    """Layer norm with a bias over the last axis (Ba et al. 2016), weighted and computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = empty_parameter(width, dtype=torch.float32)
        self.bias = empty_parameter(width, dtype=torch.float32)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x.float(), self.weight.shape, self.weight, self.bias, self.eps).to(
            x.dtype
        )


def project_to_float32(hidden: Tensor, head: Linear) -> Tensor:
    """`hidden [n, in]` through a bias-free `head [out, in]` to float32 `[n, out]`, accumulated in float32.

    A bfloat16 product would be rounded to 8 bits of mantissa, which makes ties, and so a wrong argmax, common.
    """
    if hidden.dtype == torch.float32:
        logits: Tensor = head(hidden)
        # Samplers look at whole rows.
        return logits.contiguous()
    if hidden.is_cuda:
        return torch.mm(hidden, head.weight.t(), out_dtype=torch.float32)
    # The CPU has no mixed product: widen the head a slice at a time, so that no float32 copy of it ever exists.
    wide = hidden.float()
    return torch.cat(
        [functional.linear(wide, rows.float()) for rows in torch.split(head.weight, _VOCABULARY_SLICE)],
        dim=-1,
    )
