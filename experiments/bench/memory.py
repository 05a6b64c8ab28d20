"""How much memory the engines took, and whether ours kept to its limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from experiments.bench.jobs import Memory

WEIGHTS_FACTOR: Final = 1.3
ALLOWANCE_BYTES: Final = 100_000_000


def memory_limit(memory: Memory) -> int | None:
    """The most that may be resident: after imports, plus 1.3 × weights, plus KV pool, plus 100 MB.

    None where the engine does not tell its parts.
    """
    if memory.weights is None or memory.kv_pool is None:
        return None
    return memory.rss_after_imports + int(WEIGHTS_FACTOR * memory.weights) + memory.kv_pool + ALLOWANCE_BYTES


def memory_row(engine: str, memory: Memory, bound: bool) -> dict[str, Any]:
    """A row of the report, in bytes; `ok` is None for an engine that the limit does not bind."""
    limit = memory_limit(memory)
    ok = None if not bound or limit is None else memory.peak_rss <= limit
    return {"engine": engine, **vars(memory), "limit": limit, "ok": ok}


def over_limit(row: Mapping[str, Any]) -> Iterator[str]:
    """The fault of a row that is over its limit."""
    if row["ok"] is False:
        yield f"at most {row['peak_rss'] / 1e6:,.0f} MB resident, over the limit of {row['limit'] / 1e6:,.0f} MB"
