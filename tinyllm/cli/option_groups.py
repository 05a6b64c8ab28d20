"""Groups of options that several commands share, written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer is to see it: a parameter whose type is a dataclass stands for that class's fields.

    The fields are annotated as options are. Called with them, it makes the groups and calls `command`.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}

    @wraps(command)
    def flat(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    flat.__signature__ = inspect.Signature(list(_flattened(command, hints)))  # type: ignore[attr-defined]
    return flat


def _flattened(command: Callable[..., None], hints: dict[str, Any]) -> Iterator[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY  # these need no order between those with and without a default
    for name, parameter in inspect.signature(command).parameters.items():
        group = hints[name]
        if not is_dataclass(group):
            yield parameter.replace(annotation=group, kind=kind)
            continue
        types = get_type_hints(group, include_extras=True)
        for field in fields(group):
            yield inspect.Parameter(field.name, kind, default=field.default, annotation=types[field.name])
