"""Other engines to compare with, by name. A new one is a file here and a line in `BACKENDS`."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from experiments.backends.base import Backend
from tinyllm.errors import InputError

BACKENDS: Final = {
    "transformers": "experiments.backends.transformers_generate:TransformersBackend",
    "vllm": "experiments.backends.vllm_greedy:VLLMBackend",
}
"""What `--backend` takes. Named by path, so that only the chosen one is imported."""


def backend_class(name: str) -> type[Backend]:
    """The backend of that name.

    Raises:
        InputError: there is none of that name, or a package that it needs is not installed.
    """
    if name not in BACKENDS:
        raise InputError(f"--backend {name}: unknown; choose {', '.join(BACKENDS)}")
    module, _, attribute = BACKENDS[name].partition(":")
    try:
        backend: type[Backend] = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise InputError(
            f"--backend {name}: {error.name} is not installed; docs/runtime-api.md says how to get it"
        ) from None
    return backend
