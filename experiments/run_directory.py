"""A run directory: claimed without destroying anything, its manifest always telling the truth."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinyllm.engine.record.manifest import MANIFEST, Status, environment, write_manifest
from tinyllm.engine.record.schema import TABLES
from tinyllm.engine.record.workload import ArrivalRecord, write_workload
from tinyllm.engine.record.writer import LogWriter
from tinyllm.errors import InputError

WORKLOAD_FILE = "workload.parquet"
BLOCK_HASHES_FILE = "block_hashes.parquet"
_FILES = (MANIFEST, WORKLOAD_FILE, BLOCK_HASHES_FILE)
_PART = re.compile(r"part-\d+\.parquet|\.part-\d+\.parquet\.tmp")
"""Parts of a table, and what a kill can leave of one."""


class RunDirectory:
    """One run's place on disk.

    Args:
        path: a directory that is missing or empty; with `force` also one that holds an older run and
            nothing else, which is removed.
        manifest: what the run is; status, environment and times are added here.

    Raises:
        InputError: the path can't be used, naming what is in the way. Nothing was touched then.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], *, force: bool = False) -> None:
        self.path = path
        self._manifest = {**environment(), "status": "running", **manifest, "started": _utc_now()}
        is_new = not os.path.lexists(path)
        try:
            _clear(path, force)
            path.mkdir(parents=True, exist_ok=True)
            write_manifest(path, self._manifest)
        except OSError as error:
            if is_new and path.is_dir():
                path.rmdir()
            raise InputError(f"--out {path}: {error.strerror or error}; choose another directory") from error

    def write_workload(self, records: Sequence[ArrivalRecord]) -> None:
        """Write the arrival records, before the first step."""
        write_workload(self.path / WORKLOAD_FILE, records)

    def open_log(self, flush_seconds: float | None = None) -> LogWriter:
        """The writer of the four tables; a real run flushes by the clock too."""
        return LogWriter(self.path, flush_seconds=flush_seconds)

    def finish(self, status: Status, **facts: Any) -> None:
        """Write the final manifest."""
        self._manifest.update(facts, status=status, ended=_utc_now())
        write_manifest(self.path, self._manifest)


def check_free(path: Path, *, force: bool) -> None:
    """Refuse a path that a run must not use, before any long work.

    Raises:
        InputError: it is a file, or not empty (with `force`: holds something that no run wrote).
    """
    try:
        entries = _entries(path)
        foreign = [entry for entry in entries if not _is_ours(entry, path)]
    except OSError as error:
        raise InputError(f"--out {path}: {error.strerror or error}; choose another directory") from error
    if entries and not force:
        raise InputError(
            f"--out {path}: is not empty; give another directory, or --force to replace the run in it"
        )
    if foreign:
        raise InputError(
            f"--out {path}: holds {str(foreign[0].relative_to(path))!r}, which no run wrote; --force replaces "
            "runs only, give another directory"
        )


def _entries(path: Path) -> list[Path]:
    """What lies in a directory, and in the tables of the run in it."""
    if not path.is_dir():
        if path.exists():
            raise InputError(f"--out {path}: is a file; give a directory that does not exist yet")
        return []
    entries = sorted(path.iterdir())
    tables = [entry for entry in entries if entry.name in TABLES and entry.is_dir()]
    return entries + [part for table in tables for part in sorted(table.iterdir())]


def _is_ours(entry: Path, run: Path) -> bool:
    """Whether `_clear` may remove an entry of a run, or leaves it alone because it is hidden."""
    if entry.parent != run:
        return entry.is_file() and _PART.fullmatch(entry.name) is not None
    if entry.name.startswith("."):
        return True
    # A link leads out of the directory.
    return not entry.is_symlink() and entry.name in (TABLES if entry.is_dir() else _FILES)


def _clear(path: Path, force: bool) -> None:
    check_free(path, force=force)
    # The manifest first: a directory without it is no run, whatever else is left when this is cut short.
    for name in _FILES:
        (path / name).unlink(missing_ok=True)
    for name in TABLES:
        if (path / name).is_dir():
            shutil.rmtree(path / name)


def _utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
