"""The report directory: claimed without destroying anything, its manifest always telling how far the run has come."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, Final, Literal

from experiments.bench.raw import RAW
from tinyllm.engine.record.manifest import MANIFEST, write_manifest
from tinyllm.errors import InputError

Status = Literal["running", "complete", "interrupted", "failed"]

FILES: Final = ("environment.json", "commands.md", "summary.json", "summary.parquet", "report.md")


class ReportDirectory:
    """One benchmark's place on disk.

    Args:
        path: a directory that is missing or empty; with `force` also one that holds an older benchmark and nothing
            else, which is removed.
        manifest: what the run is; status and times are added here.

    Raises:
        InputError: the path can't be used, naming what is in the way. Nothing was touched then.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], *, force: bool = False) -> None:
        check_free(path, force=force)
        self.path = path
        self._manifest = {**manifest, "status": "running", "started": _utc_now(), "runs": []}
        try:
            path.mkdir(parents=True, exist_ok=True)
            # The manifest first: a directory without it is no benchmark, whatever is left when this is cut short.
            for name in (MANIFEST, *FILES):
                (path / name).unlink(missing_ok=True)
            shutil.rmtree(path / RAW, ignore_errors=True)
            write_manifest(path, self._manifest)
        except OSError as error:
            raise InputError(f"--out {path}: {error.strerror or error}; choose another directory") from None

    def note(self, **facts: Any) -> None:
        """Add facts to the manifest."""
        self._manifest.update(facts)
        write_manifest(self.path, self._manifest)

    def note_run(self, run: dict[str, Any]) -> None:
        """Add a run that is complete."""
        self._manifest["runs"].append(run)
        write_manifest(self.path, self._manifest)

    def finish(self, status: Status, reason: str | None = None) -> None:
        """Write the last manifest."""
        self.note(status=status, reason=reason, ended=_utc_now())

    def write_json(self, name: str, value: Any) -> None:
        """Write a file as a whole."""
        self.write_text(name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a file as a whole."""
        temporary = self.path / f".{name}.tmp"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self.path / name)


def check_free(path: Path, *, force: bool) -> None:
    """Refuse a path that a benchmark must not use, before any long work.

    Raises:
        InputError: it is a file, or not empty (with `force`: holds something that no benchmark wrote).
    """
    if path.exists() and not path.is_dir():
        raise InputError(f"--out {path}: is a file; give a directory that does not exist yet")
    try:
        entries = sorted(path.iterdir()) if path.is_dir() else []
    except OSError as error:
        raise InputError(f"--out {path}: {error.strerror or error}; choose another directory") from None
    if entries and not force:
        raise InputError(
            f"--out {path}: is not empty; give another directory, or --force to replace the report in it"
        )
    foreign = [entry for entry in entries if not _is_ours(entry)]
    if foreign:
        raise InputError(
            f"--out {path}: holds {foreign[0].name!r}, which no benchmark wrote; --force replaces reports only, "
            "give another directory"
        )


def _is_ours(entry: Path) -> bool:
    if entry.is_symlink():
        return False  # a link leads out of the directory
    if entry.is_dir():
        return entry.name == RAW and all(_is_part(part) for part in entry.iterdir())
    return entry.name in (MANIFEST, *FILES) or (entry.name.startswith(".") and entry.name.endswith(".tmp"))


def _is_part(entry: Path) -> bool:
    return entry.is_file() and entry.name.startswith(("part-", ".part-"))


def _utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
