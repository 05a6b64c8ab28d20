"""Wrong usage of the command line, as one line like every other error."""

from __future__ import annotations

from typing import Any, cast

import typer

UsageError = cast("type[Exception]", typer.BadParameter.__base__)
"""Base of what the parser raises. Typer takes it from Click or, in newer versions, from a copy of its own."""


def usage_message(error: Any) -> str:
    """What is wrong, and whose `--help` says how it is right; empty if that help was shown in place of it."""
    message = error.format_message().rstrip(".")
    command = error.ctx.command_path if error.ctx else "tinyllm"
    return f"{message}; see {command} --help" if message else ""
