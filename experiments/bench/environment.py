"""What a number of a report applies to: the machine, the versions, the weights."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinyllm.engine.record.manifest import environment


def describe_environment(engines: Mapping[str, Mapping[str, Any]], model: Path) -> dict[str, Any]:
    """Machine, versions, engines and model, with the hashes of its files.

    Args:
        engines: by name, what each says of itself.
    """
    base = environment()
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "host": {**base["host"], **_cpu(), "memory_bytes": _memory_bytes()},
        "versions": base["versions"],
        "git_revision": base["git_revision"],
        "engines": {name: dict(info) for name, info in engines.items()},
        "model": describe_model(model),
    }


def describe_model(directory: Path) -> dict[str, Any]:
    """Name, revision where the directory tells one, and the sha256 of configuration and weights."""
    files = sorted([*directory.glob("*.safetensors"), *directory.glob("*config.json")])
    return {
        "name": directory.resolve().name,
        "revision": _revision(directory),
        "sha256": {file.name: _sha256(file) for file in files},
    }


def _revision(directory: Path) -> str | None:
    """The package that it was made from, or the commit in a Hugging Face cache's path."""
    source = directory / "source.json"
    if source.is_file():
        facts = json.loads(source.read_text(encoding="utf-8"))
        return f"{facts.get('package')} ({facts.get('gguf_sha256')})"
    resolved = directory.resolve()
    return resolved.name if resolved.parent.name == "snapshots" else None


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _cpu() -> dict[str, Any]:
    """Model and vector instructions, where the system tells."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {"cpu": platform.processor() or None, "vector": []}
    facts = dict(line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    flags = facts.get("flags", "").split()
    vector = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_tile") if flag in flags]
    return {"cpu": facts.get("model name"), "vector": vector}


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
