"""A run directory: claimed without destroying anything, its manifest always telling the truth."""

from __future__ import annotations

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
_OURS = (MANIFEST, WORKLOAD_FILE, BLOCK_HASHES_FILE, *TABLES)


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
        try:
            _clear(path, force)
            path.mkdir(parents=True, exist_ok=True)
            write_manifest(path, self._manifest)
        except OSError as error:
            raise InputError(f"--out {path}: {error.strerror or error}; choose another directory") from error

    def write_workload(self, records: Sequence[ArrivalRecord]) -> None:
        """Write the arrival records, before the first step."""
        write_workload(self.path / WORKLOAD_FILE, records)

    def open_log(self) -> LogWriter:
        """The writer of the four tables."""
        return LogWriter(self.path)

    def finish(self, status: Status, **facts: Any) -> None:
        """Write the final manifest."""
        self._manifest.update(facts, status=status, ended=_utc_now())
        write_manifest(self.path, self._manifest)


def check_free(path: Path, *, force: bool) -> None:
    """Refuse a path that a run must not use, before any long work.

    Raises:
        InputError: it is a file, or not empty (with `force`: holds something that no run wrote).
    """
    if path.exists() and not path.is_dir():
        raise InputError(f"--out {path}: is a file; give a directory that does not exist yet")
    entries = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    if entries and not force:
        raise InputError(
            f"--out {path}: is not empty; give another directory, or --force to replace the run in it"
        )
    foreign = [name for name in entries if name not in _OURS and not name.startswith(".")]
    if foreign:
        raise InputError(
            f"--out {path}: holds {foreign[0]!r}, which no run wrote; --force replaces runs only, "
            "give another directory"
        )


def _clear(path: Path, force: bool) -> None:
    check_free(path, force=force)
    # The manifest first: a directory without it is no run, whatever else is left when this is cut short.
    for name in _OURS:
        entry = path / name
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def _utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
