"""The event log, schema version 1: tables, columns and dtypes. A promise to users; see docs/event-log.md."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

SCHEMA_VERSION: Final = 1

_S = pa.string()
_F = pa.float64()
_I = pa.int64()

REQUESTS: Final = pa.schema(
    [
        ("request_id", _S),
        ("source_row", _I),
        ("tenant", _S),
        ("session", _S),
        ("priority", _I),
        ("replica", _I),
        ("arrival", _F),
        ("submitted", _F),
        ("submitted_step", _I),
        ("first_scheduled", _F),
        ("first_token", _F),
        ("finished", _F),
        ("prompt_tokens", _I),
        ("max_tokens", _I),
        ("target_output_tokens", _I),
        ("output_tokens", _I),
        ("cached_prompt_tokens", _I),
        ("recomputed_tokens", _I),
        ("preemptions", _I),
        ("finish_reason", _S),
        ("error", _S),
    ]
)

STEPS: Final = pa.schema(
    [
        ("step", _I),
        ("num_steps", _I),
        ("replica", _I),
        ("start", _F),
        ("end", _F),
        ("gap_s", _F),
        ("schedule_s", _F),
        ("execute_s", _F),
        ("num_running", _I),
        ("num_waiting", _I),
        ("prefill_seqs", _I),
        ("decode_seqs", _I),
        ("prefill_tokens", _I),
        ("decode_tokens", _I),
        ("sampled_tokens", _I),
        ("prefill_attention_pairs", _I),
        ("decode_context_tokens", _I),
        ("blocks_used", _I),
        ("blocks_cached", _I),
        ("blocks_free", _I),
        ("admitted", _I),
        ("preempted", _I),
        ("finished", _I),
    ]
)

SPANS: Final = pa.schema(
    [
        ("request_id", _S),
        ("replica", _I),
        ("phase", _S),
        ("first_step", _I),
        ("last_step", _I),
        ("tokens", _I),
        ("sampled", _I),
    ]
)

EVENTS: Final = pa.schema(
    [
        ("time", _F),
        ("request_id", _S),
        ("replica", _I),
        ("event", _S),
        ("step", _I),
        ("detail", _S),
    ]
)

TABLES: Final = {"requests": REQUESTS, "steps": STEPS, "spans": SPANS, "events": EVENTS}
"""Name of each table's folder in a run directory, and its schema."""

WORKLOAD: Final = pa.schema(
    [
        ("request_id", _S),
        ("source_row", _I),
        ("arrival", _F),
        ("arrival_ns", _I),
        ("prompt_tokens", _I),
        ("max_tokens", _I),
        ("target_output_tokens", _I),
        ("predicted_output_tokens", _I),
        ("priority", _I),
        ("tenant", _S),
        ("session", _S),
        ("ttft_deadline", _F),
        ("ttft_deadline_ns", _I),
        ("e2e_deadline", _F),
        ("e2e_deadline_ns", _I),
        ("prefix_ids", pa.list_(_I)),
        ("warmup", pa.bool_()),
    ]
)
"""`workload.parquet`: the arrival records after every transform, written before the first step."""

EVENT_NAMES: Final = (
    "queued",
    "scheduled",
    "first_token",
    "preempted",
    "resumed",
    "finished",
    "rejected",
    "aborted",
    "unfinished",
    "routed",
    "transferred",
    "failed",
    "retried",
)
