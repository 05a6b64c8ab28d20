"""`--config FILE.toml`: any option of a command by its name; the command line wins."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from tinyllm.errors import InputError


def load_config(context: typer.Context, path: Path | None) -> Path | None:
    """Read the defaults of a command's options from a TOML file, before its other options are parsed.

    Keys are the options' names, with `-` or `_`.

    Raises:
        InputError: the file can't be read, or a key is no option of the command.
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
        if isinstance(value, dict):
            raise InputError(f"--config {path}: {key!r} is a table; options stand at the top level")
        defaults[str(parameter.name)] = value
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _name(parameter: Any) -> str:
    long_names = [option for option in parameter.opts if option.startswith("--")]
    return (long_names[0] if long_names else str(parameter.name)).lstrip("-").lower().replace("_", "-")


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", help="TOML file of options; the command line wins.", is_eager=True, callback=load_config
    ),
]
