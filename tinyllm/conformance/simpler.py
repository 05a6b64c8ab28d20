"""Makes a failing world simpler: leaves out requests, goes back to plain values, shortens what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tinyllm.conformance.world import Arrival, World

PLAIN_CONFIG: dict[str, Any] = {
    "batching": "mixed",
    "max_num_prefill_tokens": None,
    "max_num_decode_tokens": None,
    "max_num_partial_prefills": None,
    "tpot_slo": None,
    "early_rejection": "none",
    "max_queued_requests": None,
    "long_prefill_token_threshold": 0,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": False,
    "admission": "first-chunk",
    "watermark": 0.0,
    "max_model_len": None,
    "max_num_batched_tokens": 16,
    "max_num_seqs": 1,
    "block_size": 1,
}
PLAIN_FIELDS: dict[str, Any] = {
    "priority": 0,
    "tenant": None,
    "predicted_output_tokens": None,
    "block_hashes": [],
    "ttft_deadline": None,
}
_VICTIMS = ("preemption", "num_cpu_blocks")


def simplest(world: World, fails: Callable[[World], bool]) -> World:
    """The world, simplified one change at a time for as long as it still fails."""
    progress = True
    while progress:
        progress = False
        for candidate in _simpler(world):
            if fails(candidate):
                world, progress = candidate, True
                break
    return world


def _simpler(world: World) -> Iterator[World]:
    arrivals = world.arrivals
    for i in range(len(arrivals)):
        if len(arrivals) > 1:
            yield world._replace(arrivals=arrivals[:i] + arrivals[i + 1 :])
    for option, value in PLAIN_CONFIG.items():
        if world.config.get(option, value) != value:
            config = {key: kept for key, kept in world.config.items() if key not in _VICTIMS}
            yield world._replace(config=config | {option: value})
    if any(option in world.config for option in _VICTIMS):
        config = {key: kept for key, kept in world.config.items() if key not in _VICTIMS}
        yield world._replace(config=config)
    needs_estimate = world.config.get("tpot_slo") or world.config.get("early_rejection") == "predicted"
    if "step_estimate" in world.config and not needs_estimate:
        config = {key: kept for key, kept in world.config.items() if key != "step_estimate"}
        yield world._replace(config=config)
    num_blocks = world.config["num_gpu_blocks"]
    for fewer in (num_blocks // 2, num_blocks - 1):
        if fewer >= 1:
            yield world._replace(config=world.config | {"num_gpu_blocks": fewer})
    for i, arrival in enumerate(arrivals):
        for simpler in _simpler_arrivals(arrival, arrivals[i - 1].step if i else 0):
            yield world._replace(arrivals=[*arrivals[:i], simpler, *arrivals[i + 1 :]])


def _simpler_arrivals(arrival: Arrival, earliest: int) -> Iterator[Arrival]:
    if arrival.abort_step is not None:
        yield arrival._replace(abort_step=None)
    for step in (earliest, arrival.step - 1):
        if earliest <= step < arrival.step:
            yield arrival._replace(step=step)
    for name, value in PLAIN_FIELDS.items():
        if arrival.fields.get(name, value) != value:
            yield arrival._replace(fields=arrival.fields | {name: value})
    for size in ("prompt", "output", "other_output"):
        now: int = getattr(arrival, size)
        for smaller in (1, now // 2, now - 1):
            if 1 <= smaller < now:
                changes: dict[str, Any] = {size: smaller}
                yield arrival._replace(**changes)
    longest = max(arrival.output, arrival.other_output)
    if arrival.fields["max_tokens"] > longest:
        yield arrival._replace(fields=arrival.fields | {"max_tokens": longest})
