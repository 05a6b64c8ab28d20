"""Where vLLM lives: an environment of its own, whose Python runs what needs it as a child process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tinyllm.errors import InputError

ROOT: Final = Path(__file__).parents[2]
"""Where the packages of this project lie: on a child's path, they need no installation there."""

PYTHON_VARIABLE: Final = "TINYLLM_VLLM_PYTHON"
DEFAULT_PYTHON: Final = ROOT / ".venv-vllm/bin/python"
"""What `make peer-vllm` makes."""


def vllm_python(option: str, given: Path | None = None) -> Path:
    """The Python that has vLLM: the one given, else the one that `TINYLLM_VLLM_PYTHON` names, else the default.

    Args:
        option: of the command line, that asks for it.

    Raises:
        InputError: it is not there.
    """
    python = given or Path(os.environ.get(PYTHON_VARIABLE, DEFAULT_PYTHON))
    if not python.exists():
        raise InputError(
            f"{option}: no {python}; run `make peer-vllm`, or set {PYTHON_VARIABLE} to a Python that has vLLM"
        )
    return python


def child_environment() -> dict[str, str]:
    """Environment variables of a child that runs vLLM on a CPU: one process, this project on its path."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    defaults = {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    return defaults | dict(os.environ) | {"PYTHONPATH": path}
