"""Engines that a benchmark can run, by name. A new one is a file here and a line in `ENGINES`."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Final

from experiments.bench.engines.base import Engine
from tinyllm.errors import InputError

ENGINES: Final = {
    "tinyllm": "experiments.bench.engines.tinyllm_engine:TinyLLM",
    "transformers-static": "experiments.bench.engines.transformers_static:TransformersStatic",
    "transformers-continuous": "experiments.bench.engines.transformers_continuous:TransformersContinuous",
    "vllm-eager": "experiments.bench.engines.vllm_engine:VLLMEager",
    "vllm-compiled": "experiments.bench.engines.vllm_engine:VLLMCompiled",
    "tinyllm-float32": "experiments.bench.engines.tinyllm_engine:TinyLLMFloat32",
}
"""Named by path: a path `module:Class` of one's own is a name, too."""

FAMILIES: Final = {
    "tinyllm": ("tinyllm",),
    "transformers": ("transformers-static", "transformers-continuous"),
    "vllm": ("vllm-eager", "vllm-compiled"),
}
"""What `--backend` names: the modes of one engine, of which the better one counts."""


def engine_path(name: str) -> str:
    """The `module:Class` of an engine.

    Raises:
        InputError: there is none of that name.
    """
    path = ENGINES.get(name, name)
    if ":" not in path:
        raise InputError(f"engine {name}: unknown; choose {', '.join(ENGINES)}, or give module:Class")
    return path


def engine_class(name: str) -> type[Engine]:
    """The class of an engine; what it is made of is imported when it is prepared.

    Raises:
        InputError: there is none of that name or path.
    """
    module, _, attribute = engine_path(name).partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"engine {name}: {error}; give module:Class of an importable module") from None
    if not (isinstance(found, type) and issubclass(found, Engine)):
        raise InputError(f"engine {name}: is no class derived from experiments.bench.engines.base.Engine")
    return found


def family_engines(backends: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The engines to run for what `--backend` names: families, or single engines, which are families of one.

    Raises:
        InputError: a name is neither, or an engine is named twice.
    """
    families: dict[str, tuple[str, ...]] = {}
    for name in backends:
        if name not in FAMILIES and ":" not in name and name not in ENGINES:
            known = dict.fromkeys([*FAMILIES, *ENGINES])
            raise InputError(f"--backend {name}: unknown; choose {', '.join(known)}, or give module:Class")
        engines = FAMILIES.get(name, (name,))
        for other, chosen in families.items():
            if twice := set(engines) & set(chosen):
                raise InputError(f"--backend {name}: {min(twice)} is in {other} already; name it once")
        families[name] = engines
    return families
