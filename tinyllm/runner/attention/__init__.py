"""Attention backends by name. A new one is a file here and a line in `BACKENDS`."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import torch

from tinyllm.errors import InputError
from tinyllm.runner.attention.base import AttentionBackend

BACKENDS: Final = {
    "cpu": "tinyllm.runner.attention.cpu:CPUAttention",
    "reference": "tinyllm.runner.attention.reference:ReferenceAttention",
    "sdpa": "tinyllm.runner.attention.sdpa:SDPAAttention",
}
"""What `--attention` takes, beside `auto`. Named by path, so that only the chosen one is imported."""

FASTEST: Final = {"cpu": "cpu", "cuda": "sdpa"}
"""What `auto` is on a type of device."""


def get_backend(name: str, device: torch.device) -> type[AttentionBackend]:
    """The class of the backend of that name; `auto` is the fastest on the device.

    Raises:
        InputError: there is none of that name.
    """
    if name == "auto":
        name = FASTEST.get(device.type, "sdpa")
    if name not in BACKENDS:
        raise InputError(f"--attention {name}: no such backend; choose auto, {', '.join(sorted(BACKENDS))}")
    module, _, attribute = BACKENDS[name].partition(":")
    backend: type[AttentionBackend] = getattr(import_module(module), attribute)
    return backend
