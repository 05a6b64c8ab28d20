"""What tables show of a run and of a tenant: the terminal and the report page share these columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from analysis.metrics import ServiceLevels


class Column(NamedTuple):
    """One column of numbers.

    Attributes:
        key: in a `Summary` or in the rows of `tenant_table`.
        group: first line of the heading; said once where neighbours share it.
        label: second line of the heading.
        scale: how many of the shown unit are in one.
    """

    key: str
    group: str
    label: str
    scale: float = 1.0


LATENCY = (
    Column("ttft_mean", "TTFT", "mean s"),
    Column("ttft_p50", "TTFT", "p50 s"),
    Column("ttft_p99", "TTFT", "p99 s"),
    Column("tpot_mean", "TPOT", "mean ms", 1e3),
    Column("tpot_p50", "TPOT", "p50 ms", 1e3),
    Column("tpot_p99", "TPOT", "p99 ms", 1e3),
    Column("itl_p50", "ITL", "p50 ms", 1e3),
    Column("itl_p99", "ITL", "p99 ms", 1e3),
    Column("e2e_mean", "E2E", "mean s"),
    Column("e2e_p50", "E2E", "p50 s"),
    Column("e2e_p99", "E2E", "p99 s"),
)
SERVICE = (
    Column("offered", "", "offered"),
    Column("completed", "", "done"),
    Column("refused", "", "refused"),
    Column("unfinished", "", "unfinished"),
    Column("request_throughput", "", "req/s"),
    Column("output_throughput", "", "tok/s"),
    Column("queue_mean", "queue", "mean s"),
    Column("mean_running", "running", "mean"),
    Column("preemptions_per_request", "preempted", "/ request"),
    Column("recomputed_share", "recom-", "puted %", 100),
    Column("prefix_hit_share", "prefix", "hits %", 100),
    Column("peak_blocks_used", "KV blocks", "peak"),
    Column("num_gpu_blocks", "KV blocks", "pool"),
)
LEVELS = (
    Column("attainment", "met", "%", 100),
    Column("goodput", "goodput", "req/s"),
    Column("goodput_per_gpu", "per GPU", "req/s"),
    Column("fluidity_index_mean", "fluidity", "index"),
    Column("qoe_mean", "", "QoE"),
)
"""What a run is worth under service levels."""

FAIRNESS = (
    Column("tenants", "", "tenants"),
    Column("jain_index", "Jain index", "of service"),
    Column("service_gap_max", "largest gap", "(weighted tokens)"),
)

_OF_A_RUN = {column.key: column for column in LATENCY + SERVICE}
COMPARISON = tuple(
    _OF_A_RUN[key]
    for key in (
        "offered",
        "completed",
        "request_throughput",
        "output_throughput",
        "ttft_mean",
        "ttft_p50",
        "ttft_p99",
        "tpot_mean",
        "itl_p99",
        "e2e_mean",
        "e2e_p99",
    )
)
"""The most important columns, as many as a terminal has room for."""

_OF_A_TENANT = (
    Column("offered", "", "offered"),
    Column("completed", "", "done"),
    Column("service_share", "service", "%", 100),
    Column("ttft_mean", "TTFT", "mean s"),
    Column("ttft_p99", "TTFT", "p99 s"),
    Column("e2e_mean", "E2E", "mean s"),
)


def tenant_columns(levels: ServiceLevels | None) -> tuple[Column, ...]:
    """What is shown of each tenant."""
    return (*_OF_A_TENANT, LEVELS[0]) if levels else _OF_A_TENANT


def headings(columns: Sequence[Column]) -> list[str]:
    """Two lines each, the first empty where it would only repeat the heading to the left."""
    groups = ["", *(column.group for column in columns)]
    return [
        f"{'' if column.group == before else column.group}\n{column.label}"
        for before, column in zip(groups, columns, strict=False)
    ]
