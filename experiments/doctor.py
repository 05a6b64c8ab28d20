"""Checks of an installation, each a line."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import NamedTuple

from experiments.smoke import smoke


class Check(NamedTuple):
    """One line of the diagnosis.

    Attributes:
        required: whether tinyllm is broken without it; otherwise only what `detail` names is missing.
    """

    name: str
    ok: bool
    required: bool
    detail: str


_CORE = ("numpy", "pandas", "pyarrow", "simpy", "typer", "rich")
_EXTRAS = {
    "engine": ("torch", "safetensors", "tokenizers", "jinja2", "numba"),
    "model": ("gguf",),
    "report": ("matplotlib",),
    "test": ("hypothesis", "pytest", "transformers"),
}


def diagnose() -> Iterator[Check]:
    """All checks, cheap ones first."""
    version = platform.python_version()
    yield Check("python", sys.version_info >= (3, 11), True, f"{version} on {platform.machine()}")
    for package in _CORE:
        yield _package(package, None)
    for extra, packages in _EXTRAS.items():
        for package in packages:
            yield _package(package, extra)
    yield _device()
    yield _smoke()


def _package(name: str, extra: str | None) -> Check:
    try:
        import_module(name)
        return Check(name, True, extra is None, metadata.version(name))
    except Exception as error:
        mend = f"pip install 'tinyllm[{extra}]'" if extra else "reinstall tinyllm"
        reason = "missing" if isinstance(error, ModuleNotFoundError) else f"does not import ({error})"
        return Check(name, False, extra is None, f"{reason}: {mend}")


def _device() -> Check:
    try:
        import torch
    except Exception:
        return Check("device", False, False, "none: real runs need torch; simulation does not")
    if torch.cuda.is_available():
        return Check("device", True, False, f"cuda: {torch.cuda.get_device_name()}")
    return Check("device", True, False, f"cpu, {torch.get_num_threads()} threads")


def _smoke() -> Check:
    with tempfile.TemporaryDirectory() as directory:
        try:
            summary = smoke(Path(directory) / "run")
        except Exception as error:
            return Check("smoke run", False, True, repr(error))
    return Check("smoke run", True, True, summary)
