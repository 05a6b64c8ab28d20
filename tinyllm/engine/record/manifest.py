"""`manifest.json`: what a run was, replaced atomically as its status changes."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from tinyllm.engine.record.schema import SCHEMA_VERSION

Status = Literal["running", "complete", "interrupted", "stalled"]

MANIFEST = "manifest.json"


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest of a run directory in one move."""
    temporary = directory / f".{MANIFEST}.tmp"
    try:
        temporary.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        os.replace(temporary, directory / MANIFEST)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def environment() -> dict[str, Any]:
    """What a reader needs to judge or repeat a run: versions, host, source revision."""
    versions = {"python": platform.python_version()}
    for package in ("tinyllm", "numpy", "pandas", "pyarrow", "simpy", "torch"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "schema_version": SCHEMA_VERSION,
        "versions": versions,
        "host": {
            "system": platform.system(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
        },
        "git_revision": _git_revision(),
    }


def _git_revision() -> str | None:
    """Commit of the source tree that runs, `-dirty` if it has changes; None outside a checkout."""
    here = Path(__file__).resolve().parents[3]
    if not (here / ".git").exists():
        return None
    try:
        git = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return git.stdout.strip()
