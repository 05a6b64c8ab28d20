"""Policies by name, and a user's own by `module:Class`."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from typing import Any

from tinyllm.errors import InputError
from tinyllm.policy.aged_priority import AgedPriority
from tinyllm.policy.base import SchedulingPolicy
from tinyllm.policy.edf import EDF
from tinyllm.policy.fcfs import FCFS
from tinyllm.policy.ljf import LJF
from tinyllm.policy.mlfq import MLFQ
from tinyllm.policy.priority import Priority
from tinyllm.policy.rate_limit import RateLimit
from tinyllm.policy.sjf import SJF
from tinyllm.policy.srpt import SRPT
from tinyllm.policy.vtc import VTC

POLICIES: dict[str, type[SchedulingPolicy]] = {
    "fcfs": FCFS,
    "priority": Priority,
    "aged-priority": AgedPriority,
    "sjf": SJF,
    "ljf": LJF,
    "srpt": SRPT,
    "edf": EDF,
    "mlfq": MLFQ,
    "vtc": VTC,
    "rate-limit": RateLimit,
}

_ARG_TYPES: dict[Any, tuple[tuple[type, ...], str]] = {
    annotation: (types, text)
    for cls, types, text in (
        (bool, (bool,), "true or false"),
        (int, (int,), "a whole number"),
        (float, (int, float), "a number"),
    )
    for annotation in (cls, cls.__name__)  # a class, or its name under `from __future__ import annotations`
}
"""Annotations of constructor arguments whose values are checked, since the command line gives any JSON."""


def make_policy(name: str, args: Mapping[str, Any] | None = None) -> SchedulingPolicy:
    """A new policy object: a built-in by name, or `module:Class` from the import path or the current folder.

    Args:
        args: keyword arguments of the class (`--policy-arg key=value`).

    Raises:
        InputError: no such policy, module, class or argument, an argument that is missing or of another type
            than the class says, or the class is no SchedulingPolicy.
    """
    cls = _load_class(name) if ":" in name else POLICIES.get(name)
    if cls is None:
        raise InputError(
            f"--policy {name}: unknown; choose {', '.join(POLICIES)}, or module:Class of your own"
        )
    args = dict(args or {})
    _check_args(name, cls, args)
    return cls(**args)


def _check_args(name: str, cls: type[SchedulingPolicy], args: Mapping[str, Any]) -> None:
    signature = inspect.signature(cls)
    try:
        signature.bind(**args)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "none"
        raise InputError(f"--policy-arg: {name}: {error}; its arguments: {takes}") from None
    for key, value in args.items():
        parameter = signature.parameters.get(key)
        expected = _ARG_TYPES.get(parameter.annotation) if parameter else None
        if expected is not None and type(value) not in expected[0]:
            raise InputError(f"--policy-arg {key}={value}: {name} takes {expected[1]}")


def _load_class(name: str) -> type[SchedulingPolicy]:
    module_name, _, class_name = name.partition(":")
    if "" not in sys.path and "." not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.split(".")[0] == error.name.split(".")[0]:
            raise InputError(
                f"--policy {name}: no module {error.name!r} in this folder or on PYTHONPATH"
            ) from error
        raise InputError(
            f"--policy {name}: {module_name} imports {error.name!r}, which is missing"
        ) from error
    except Exception as error:
        raise InputError(f"--policy {name}: importing {module_name} failed: {error!r}") from error
    cls = getattr(module, class_name, None)
    if not (inspect.isclass(cls) and issubclass(cls, SchedulingPolicy)):
        raise InputError(
            f"--policy {name}: {module_name} has no class {class_name!r} that extends SchedulingPolicy"
        )
    if cls.key is SchedulingPolicy.key:
        raise InputError(f"--policy {name}: {class_name} has no `key` method of its own; write one")
    return cls
