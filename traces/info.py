"""What a trace is like: one pass; memory grows with distinct lengths, sessions, prefix ids and 10 s bins."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tinyllm.errors import InputError
from traces.measures import Arrivals, LengthStats, length_stats
from traces.prefix import IdealPrefixCache
from traces.schema import Provenance, Trace, TraceRow


@dataclass(frozen=True)
class TraceSummary:
    """Statistics of a consumed trace.

    Attributes:
        rows: rows that reached the summary (= `provenance.rows_out`).
        span_s: seconds from the first to the last arrival.
        rate: rows / span, per second; None where the span is 0.
        cv: population standard deviation / mean of the gaps between arrivals; None where the span is 0.
        dispersion: population variance / mean of the arrivals in bins of 10 s from the first arrival to the
            last (1 = Poisson); unlike the CV it does not mistake a coarse clock for bursts.
        distinct_times: number of different time stamps.
        sessions, session_rows: distinct session ids, rows that have one.
        tenants: rows of each tenant, in order of first appearance.
        prefix_hit_share: share of all prompt tokens that an infinite prefix cache holds; None without ids.
        block_hit_share: the same in full KV blocks of `block_size`; None where that was not asked.
        warnings: what a reader of the numbers must know; those of the provenance come first.
    """

    provenance: Provenance
    rows: int
    span_s: float
    rate: float | None
    cv: float | None
    dispersion: float | None
    distinct_times: int
    prompt: LengthStats
    output: LengthStats
    sessions: int
    session_rows: int
    tenants: dict[str, int]
    prefix_hit_share: float | None
    block_size: int | None
    block_hit_share: float | None
    warnings: list[str]

    @property
    def turns_per_session(self) -> float | None:
        return self.session_rows / self.sessions if self.sessions else None


def summarize(trace: Trace, block_size: int | None = None) -> TraceSummary:
    """Consume a trace and describe it.

    Args:
        trace: of at least one row (what `open_trace` and `prepare` see to).
        block_size: KV block size for which the ideal prefix-hit share is wanted, too.

    Raises:
        InputError: `block_size` is below 1 or does not divide the block of the prefix ids; whatever the stream raises.
    """
    if block_size is not None and block_size < 1:
        raise InputError(f"--block-size: {block_size} is not a number of tokens; give 1 or more")
    arrivals, hits = Arrivals(), _Hits(trace.prefix_block_size, block_size)
    prompts, outputs = Counter[int](), Counter[int]()
    sessions, tenants = Counter[str](), Counter[str]()
    for row in trace.rows:
        arrivals.add(row.arrival_ns)
        hits.add(row)
        prompts[row.prompt_tokens] += 1
        outputs[row.output_tokens] += 1
        if row.session is not None:
            sessions[row.session] += 1
        if row.tenant is not None:
            tenants[row.tenant] += 1
    total = max(sum(tokens * rows for tokens, rows in prompts.items()), 1)
    return TraceSummary(
        provenance=trace.provenance,
        rows=arrivals.rows,
        span_s=arrivals.span_ns / 1e9,
        rate=arrivals.rows * 1e9 / arrivals.span_ns if arrivals.span_ns else None,
        cv=arrivals.cv(),
        dispersion=arrivals.dispersion(),
        distinct_times=arrivals.distinct,
        prompt=length_stats(prompts),
        output=length_stats(outputs),
        sessions=len(sessions),
        session_rows=sessions.total(),
        tenants=dict(tenants),
        prefix_hit_share=hits.tokens / total if hits.cache and hits.any_ids else None,
        block_size=block_size,
        block_hit_share=hits.block_tokens / total if hits.block_cache and hits.any_ids else None,
        warnings=trace.provenance.warnings + arrivals.warnings(),
    )


class _Hits:
    """Sums of ideal prefix hits, in tokens and in blocks of a given size."""

    def __init__(self, prefix_block_size: int | None, block_size: int | None) -> None:
        self.cache = self.block_cache = None
        if prefix_block_size is not None:
            self.cache = IdealPrefixCache(prefix_block_size)
            if block_size is not None:
                self.block_cache = IdealPrefixCache(prefix_block_size, block_size)
        self.tokens = self.block_tokens = 0
        self.any_ids = False

    def add(self, row: TraceRow) -> None:
        if row.prefix_ids is None:
            return
        self.any_ids = True
        if self.cache is not None:
            self.tokens += self.cache.hit_tokens(row)
        if self.block_cache is not None:
            self.block_tokens += self.block_cache.hit_tokens(row)
