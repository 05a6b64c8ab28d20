"""`tinyllm doctor`: what this installation can do, and what it lacks for the rest."""

from __future__ import annotations

import typer


def doctor() -> None:
    """Check the installation: Python, packages by extra, device, and a replay with the fake clock.

    Example: tinyllm doctor
    """
    from experiments.doctor import diagnose
    from tinyllm.errors import IncompleteRunError

    failed = 0
    for check in diagnose():
        mark = "ok  " if check.ok else ("FAIL" if check.required else "—   ")
        typer.echo(f"{mark} {check.name:<24} {check.detail}")
        failed += check.required and not check.ok
    if failed:
        raise IncompleteRunError(f"{failed} required checks failed; see the lines above")
