"""Resident memory of this process and its children, from `/proc`."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def resident() -> int:
    """Bytes that are resident now; where there is no `/proc`, at most so far."""
    return _total("VmRSS")


def peak() -> int:
    """Bytes that were resident at most: the sum of each process's own peak, for the children that are alive."""
    return _total("VmHWM")


def _total(field: str) -> int:
    if not _PROC.exists():
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return sum(_read(pid, field) for pid in _family(os.getpid()))


def _family(pid: int) -> Iterator[int]:
    """A process and all that descend from it."""
    yield pid
    for task in _PROC.glob(f"{pid}/task/*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # the thread ended meanwhile
            continue
        for child in children:
            yield from _family(int(child))


def _read(pid: int, field: str) -> int:
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except OSError:  # the process ended meanwhile
        return 0
    values = [int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")]
    return values[0] if values else 0
