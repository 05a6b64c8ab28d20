from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from traces.load import open_trace
from traces.schema import Provenance, Trace, TraceRow

SHARED = Path(os.environ.get("TINYLLM_TRACES", Path(__file__).parents[2].parent / "shared/traces"))

# A machine under load is no failure: no test here is about time.
settings.register_profile("traces", deadline=None)
settings.load_profile("traces")


@pytest.fixture
def real_trace() -> Callable[[str], Path]:
    """Path of a real trace by its name in the shared folder; skips the test where it is absent."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"the real trace {name} is not there (TINYLLM_TRACES names its folder)")
        return path

    return find


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., list[TraceRow]]:
    """Write a text as a file and load its rows."""

    def load(text: str, name: str = "trace.csv", **options: object) -> list[TraceRow]:
        path = tmp_path / name
        path.write_bytes(text.encode())
        return list(open_trace(path, **options).rows)  # type: ignore[arg-type]

    return load


@pytest.fixture
def make_trace() -> Callable[..., Trace]:
    """A trace of given rows, counted as a loader counts them."""

    def make(rows: list[TraceRow], prefix_block_size: int | None = None) -> Trace:
        provenance = Provenance("rows of the test", "table", rows_in=len(rows), rows_out=len(rows))
        return Trace(iter(rows), provenance, prefix_block_size)

    return make
