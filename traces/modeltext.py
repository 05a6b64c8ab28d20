"""Models that are written as text, `name:key=value,…`, for instance `lognormal:median=300,sigma=1.2`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from tinyllm.errors import InputError

Model = TypeVar("Model")

WHOLE: Final = ("tokens", "max")
"""Arguments that are whole numbers; all others are real."""


def parse_model(what: str, text: str, models: Mapping[str, Callable[..., Model]]) -> Model:
    """The model of a registry that a text names.

    Args:
        what: how a message calls it (`lengths`).

    Raises:
        InputError: unknown name or key, a value that is no number or out of range.
    """
    name, _, arguments = text.partition(":")
    if name not in models:
        raise InputError(f"{what} {text!r}: unknown model {name!r}; the models are {', '.join(models)}")
    values: dict[str, Any] = {}
    for item in filter(None, arguments.split(",")):
        key, _, value = item.partition("=")
        try:
            values[key] = int(value) if key in WHOLE else float(value)
        except ValueError:
            raise InputError(f"{what} {text!r}: {item!r} is not key=number; mend it") from None
    try:
        return models[name](**values)
    except TypeError:
        fields = ", ".join(getattr(models[name], "__annotations__", {})) or "nothing"
        raise InputError(f"{what} {text!r}: {name} takes {fields}; give those that have no default") from None
