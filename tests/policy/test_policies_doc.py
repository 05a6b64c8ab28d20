"""docs/policies.md is true: its traces, worked by hand, are what the scheduler does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.policy import (
    POLICIES,
    Request,
    Scheduler,
    SchedulerConfig,
    SchedulingPolicy,
    check_integrity,
    make_policy,
)

DOC = Path(__file__).parents[2] / "docs" / "policies.md"
NS = 10**9
Row = dict[str, str]


def written(pairs: dict[Any, float]) -> str:
    return ", ".join(f"{name} {number:g}" for name, number in pairs.items())


STATE: dict[str, Callable[[Any, Scheduler, int], str]] = {
    "counters": lambda policy, _scheduler, _now: written(policy.counters),
    "levels": lambda policy, scheduler, _now: written(
        {request.request_id: policy.level(request.request_id) for request in scheduler.unfinished()}
    ),
    "left": lambda policy, _scheduler, now: written(
        {tenant: policy.tokens_left(tenant, now) for tenant in ("x", "y") if policy.has_spent(tenant)}
    ),
}
"""Columns that show what a policy counts, after the step."""


def section(policy: str) -> str:
    """The part of the page about one policy."""
    return DOC.read_text(encoding="utf-8").split(f"\n## `{policy}`")[1].split("\n## ")[0]


def table(text: str, first_column: str) -> list[Row]:
    """The Markdown table whose first heading is `first_column`."""
    lines = text[text.index(f"| {first_column} |") :].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def replay(
    policy: SchedulingPolicy, requests: list[Row], num_blocks: int, num_seats: int, columns: list[str]
) -> list[Row]:
    """Serve the requests, one step a second; a row a step, written as on the page."""
    config = SchedulerConfig(
        block_size=1, num_gpu_blocks=num_blocks, max_num_seqs=num_seats, max_num_batched_tokens=8
    )
    scheduler = Scheduler(config, policy)
    targets = TargetLengthProcessor()
    rows: list[Row] = []
    for second in range(50):
        now = second * NS
        for row in requests:
            if int(row["arrives"]) == second:
                request = to_request(row)
                assert scheduler.add_request(request, now) is None
                targets.add(request, int(row["output"]))
        batch = scheduler.schedule(now)
        if batch is None:
            return rows
        computes = zip(batch.requests, batch.num_scheduled_tokens, strict=True)
        step = {
            "step": str(second),
            "computes": ", ".join(f"{request.request_id} {tokens}" for request, tokens in computes),
            "lost": ", ".join(request.request_id for request in batch.preempted),
        }
        finished = scheduler.update_from_output(batch, targets.process(batch, None), now + NS)
        step["ends"] = ", ".join(request.request_id for request in finished)
        for column in set(columns) & set(STATE):
            step[column] = STATE[column](policy, scheduler, now + NS)
        check_integrity(scheduler)
        rows.append(step)
    raise AssertionError(f"not done after 50 steps: {scheduler.unfinished()}")


def to_request(row: Row) -> Request:
    predicted, due = row.get("predicted"), row.get("first due")
    return Request(
        row["request"],
        int(row["prompt"]),
        int(row["output"]),
        int(row["arrives"]) * NS,
        priority=int(row.get("priority", 0)),
        tenant=row.get("tenant"),
        predicted_output_tokens=int(predicted) if predicted else None,
        ttft_deadline=int(due) * NS if due else None,
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_the_trace_worked_by_hand_is_what_the_scheduler_does(policy: str) -> None:
    text = section(policy)
    line = re.search(r"^Pool .*$", text, re.MULTILINE)[0]
    blocks, seats = re.match(r"Pool (\d+) blocks, (\d+) seats?", line).groups()
    args = re.findall(r"`--policy-arg (\w+)=([\w.]+)`", line)
    made = make_policy(
        policy, {name: json.loads(value) if value[0].isdigit() else value for name, value in args}
    )
    steps = table(text, "step")
    assert replay(made, table(text, "request"), int(blocks), int(seats), list(steps[0])) == steps
