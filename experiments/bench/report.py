"""`report.md`: what a reader wants to know first, and how far to trust it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from experiments.bench.gates import Gate
from experiments.bench.markdown import Column, table
from experiments.bench.summary import Row

_LATENCY: Final = tuple(
    Column(f"{name}_{quantile}", f"{label} {quantile}, {unit}", scale)
    for name, label, unit, scale in (
        ("ttft", "TTFT", "s", 1.0),
        ("tpot", "TPOT", "ms", 1e3),
        ("e2e", "E2E", "s", 1.0),
    )
    for quantile in ("p50", "p95", "p99")
)
AT_ONCE: Final = (
    Column("engine", "engine"),
    Column("requests", "requests"),
    Column("tok_s", "E2E tok/s"),
    Column("decode_tok_s", "decode tok/s"),
    Column("floor_share", "of floor, %", 100.0),
    *_LATENCY,
)
OPEN_LOOP: Final = (
    Column("engine", "engine"),
    Column("requests", "requests"),
    Column("completed", "completed"),
    Column("req_s", "req/s"),
    Column("tok_s", "tok/s"),
    *_LATENCY,
    Column("queue_p50", "queue p50, s"),
    Column("queue_p95", "queue p95, s"),
    Column("queue_p99", "queue p99, s"),
    Column("max_concurrency", "max concurrency"),
    Column("good_ratio", "good, %", 100.0),
)
LOAD: Final = Column("load", "load")
_AT_ONCE_TITLES: Final = {
    "offline": "All requests at once, shard after shard:",
    "correctness": "All requests at once, EOS kept:",
    "capacity": "All requests at once, for the capacity:",
}
RATIOS: Final = (
    Column("workload", "workload"),
    Column("mode", "better mode of the other"),
    Column("compared", "compared"),
    Column("ratio", "ratio"),
)
MEMORY: Final = (
    Column("engine", "engine"),
    Column("rss_after_imports", "after imports, MB", 1e-6),
    Column("weights", "weights, MB", 1e-6),
    Column("kv_pool", "KV pool, MB", 1e-6),
    Column("peak_rss", "peak, MB", 1e-6),
    Column("limit", "limit, MB", 1e-6),
    Column("ok", "kept"),
)
LIMITS: Final = (
    Column("group", "stream"),
    Column("prompt_tokens", "prompt tokens"),
    Column("alone_ttft", "TTFT alone, s"),
    Column("alone_tpot", "TPOT alone, ms", 1e3),
    Column("ttft", "TTFT limit, s"),
    Column("tpot", "TPOT limit, ms", 1e3),
)
_COMPARED: Final = {"tok_s": "output tok/s, ours / theirs", "e2e_p50": "E2E p50, theirs / ours"}


def render(facts: Mapping[str, Any], environment: Mapping[str, Any], gates: Sequence[Gate]) -> str:
    """The page.

    Args:
        facts: `summary.json`.
        environment: `environment.json`.
    """
    lines = [f"# Benchmark {facts['suite']}", "", facts["about"] + ".", ""]
    if facts["status"] != "complete":
        lines += [
            f"**{facts['status'].capitalize()}**: {facts['reason']}. What was complete before is here.",
            "",
        ]
    for section in (_machine(facts, environment), _gates(gates), _ratio_tables(facts["ratios"])):
        lines += section
    lines += _workloads(facts["rows"])
    lines += _limits(facts)
    lines += ["## Memory", "", *table(MEMORY, facts["memory"]), ""]
    lines += [
        "The limit: resident after imports and one compiled kernel + 1.3 × weights + KV pool + 100 MB.",
        "It binds tinyllm.",
        "",
        "Numbers apply to the environment above. Figures are medians over the repeats, (smallest–largest) behind them.",
        "",
    ]
    return "\n".join(lines)


def _machine(facts: Mapping[str, Any], environment: Mapping[str, Any]) -> Iterator[str]:
    host, model = environment["host"], environment["model"]
    memory = host["memory_bytes"]
    yield from ("## Environment", "", "| | |", "|---|---|")
    vector = f", {', '.join(host['vector'])}" if host.get("vector") else ""
    size = f", {memory / 2**30:.0f} GiB" if memory else ""
    yield f"| machine | {host['cpu'] or host['machine']}, {host['cpus']} CPUs{vector}{size} |"
    yield f"| date, source revision | {environment['date']}, {environment['git_revision'] or 'unknown'} |"
    yield f"| model | {model['name']}, revision {model['revision'] or 'unknown'}, {facts['dtype']} |"
    for name, digest in model["sha256"].items():
        yield f"| sha256 of {name} | `{digest}` |"
    for name, info in environment["engines"].items():
        yield f"| {name} | version {info.get('version')}, {info.get('threads')} threads |"
    for name, reason in facts["left_out"].items():
        yield f"| {name} | **not run**: {reason} |"
    if (ceilings := facts["ceilings"]) is not None:
        yield (
            f"| ceilings | {ceilings['gflops']:.1f} GFLOP/s in matrix products, {ceilings['read_gb_s']:.1f} GB/s of "
            f"reads: medians of {ceilings['measurements']} measurements between the turns |"
        )
    if facts["trace"] is not None:
        yield f"| trace | {facts['trace']['label']} |"
    runs = facts["runs"]
    yield (
        f"| runs | {runs['done']:,} of {runs['planned']:,} complete, of them replays of arrivals "
        f"{runs['replays_done']:,} of {runs['replays_planned']:,} |"
    )
    yield f"| repeats, length scale, seed | {facts['repeats']}, {facts['length_scale']:g}, {facts['seed']} |"
    yield ""


def _gates(gates: Sequence[Gate]) -> Iterator[str]:
    yield from ("## Gates", "")
    for gate in gates:
        yield f"* {'passed' if gate.ok else '**FAILED**'}: {gate.name} ({gate.checked:,} checked)"
        yield from (f"  * {fault}" for fault in gate.faults)
        if gate.num_faults > len(gate.faults):
            yield f"  * and {gate.num_faults - len(gate.faults):,} more"
    yield ""


def _ratio_tables(ratios: Sequence[Row]) -> Iterator[str]:
    if not ratios:
        return
    yield from ("## Ratios", "", "Above 1 tinyllm is better. The other's better mode counts.", "")
    by_family = sorted(ratios, key=lambda row: row["family"])
    for family, rows in groupby(by_family, key=lambda row: row["family"]):
        shown = [row | {"compared": _COMPARED[row["metric"]]} for row in rows]
        yield from (f"### tinyllm and {family}", "", *table(RATIOS, shown), "")


def _workloads(rows: Sequence[Row]) -> Iterator[str]:
    yield from ("## Workloads", "")
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [row for row in rows if row["group"] == group]
        yield from (f"### {group}", "")
        at_once = [row for row in mine if row["kind"] != "open-loop"]
        if at_once:
            yield from (_AT_ONCE_TITLES[at_once[0]["kind"]], "", *table(AT_ONCE, at_once), "")
        replays = [row for row in mine if row["kind"] == "open-loop"]
        whole = [row for row in replays if row["bucket"] is None]
        if whole:
            yield from ("Arriving at a share of C_ref:", "", *table((LOAD, *OPEN_LOOP), whole), "")
        if len(whole) < len(replays):
            buckets = sorted(
                (row for row in replays if row["bucket"] is not None), key=lambda row: row["load"]
            )
            columns = (LOAD, Column("bucket", "prompt tokens"), *OPEN_LOOP)
            yield from ("The same by prompt length:", "", *table(columns, buckets), "")


def _limits(facts: Mapping[str, Any]) -> Iterator[str]:
    if not facts["limits"]:
        return
    factors = facts["limit_factors"]
    yield from ("## Capacity and limits", "")
    for stream, capacity in facts["capacities"].items():
        yield f"* {stream}: C_ref = {capacity:.3g} requests/s on {facts['reference']}, all submitted at once"
    yield ""
    yield (
        f"A request is good if its TTFT is at most {factors['ttft']:g} and its TPOT at most "
        f"{factors['tpot']:g} times what {facts['reference']} needs for a prompt of that length alone; "
        "between these lengths the limits are interpolated."
    )
    yield from ("", *table(LIMITS, facts["limits"]), "")
