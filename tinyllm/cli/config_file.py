"""`--config FILE.toml`: any option of a command by its name; the command line wins."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from tinyllm.cli.usage import UsageError, usage_message
from tinyllm.errors import InputError


def load_config(context: typer.Context, path: Path | None) -> Path | None:
    """Read the defaults of a command's options from a TOML file, before its other options are parsed.

    Keys are the options' names, with `-` or `_`.

    Raises:
        InputError: the file can't be read, a key is no option of the command, or its value is none for it.
    """
    if path is None:
        return None
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"--config {path}: no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"--config {path}: not a TOML file ({error})") from None
    by_name = {_name(parameter): parameter for parameter in context.command.params}
    defaults: dict[str, Any] = {}
    for key, value in table.items():
        parameter = by_name.get(key.replace("_", "-"))
        if parameter is None or parameter.name in (None, "config"):
            names = ", ".join(sorted(by_name))
            raise InputError(
                f"--config {path}: {key!r} is no option of {context.command.name}; it has {names}"
            )
        name = str(parameter.name)
        if name in defaults:
            raise InputError(f"--config {path}: {key!r} is there twice, with - and with _; keep one")
        defaults[name] = _as_typed(value, parameter, context, f"--config {path}: {key}")
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _as_typed(value: Any, parameter: Any, context: typer.Context, where: str) -> Any:
    """The value as it would stand on the command line, found valid: what the parser would round, it refuses."""
    if isinstance(value, dict):
        raise InputError(f"{where}: is a table; options stand at the top level")
    if isinstance(value, list) and not parameter.multiple:
        raise InputError(f"{where}: is a list; this option takes one value")
    typed = [_text(v) for v in value] if isinstance(value, list) else _text(value)
    if parameter.multiple and not isinstance(typed, list):
        typed = [typed]
    try:
        parameter.process_value(context, typed)
    except UsageError as error:
        raise InputError(f"{where}: {usage_message(error)}") from None
    return typed


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _name(parameter: Any) -> str:
    long_names = [option for option in parameter.opts if option.startswith("--")]
    return (long_names[0] if long_names else str(parameter.name)).lstrip("-").lower().replace("_", "-")


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", help="TOML file of options; the command line wins.", is_eager=True, callback=load_config
    ),
]
