"""docs/policies.md is true: its traces, worked by hand, are what the scheduler does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.policy import POLICIES, Request, Scheduler, SchedulerConfig, check_integrity, make_policy
from tinyllm.policy.vtc import VTC

DOC = Path(__file__).parents[2] / "docs" / "policies.md"
Row = dict[str, str]


def section(policy: str) -> str:
    """The part of the page about one policy."""
    return DOC.read_text(encoding="utf-8").split(f"\n## `{policy}`")[1].split("\n## ")[0]


def table(text: str, first_column: str) -> list[Row]:
    """The Markdown table whose first heading is `first_column`."""
    lines = text[text.index(f"| {first_column} |") :].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def replay(policy: str, requests: list[Row], num_blocks: int, num_seats: int) -> list[Row]:
    """Serve the requests, one step a time unit; a row a step, written as on the page."""
    config = SchedulerConfig(
        block_size=1, num_gpu_blocks=num_blocks, max_num_seqs=num_seats, max_num_batched_tokens=8
    )
    scheduler = Scheduler(config, make_policy(policy))
    targets = TargetLengthProcessor()
    rows: list[Row] = []
    for now in range(50):
        for row in requests:
            if int(row["arrives"]) == now:
                request = to_request(row)
                assert scheduler.add_request(request, now) is None
                targets.add(request, int(row["output"]))
        batch = scheduler.schedule(now)
        if batch is None:
            return rows
        computes = zip(batch.requests, batch.num_scheduled_tokens, strict=True)
        step = {
            "step": str(now),
            "computes": ", ".join(f"{request.request_id} {tokens}" for request, tokens in computes),
            "lost": ", ".join(request.request_id for request in batch.preempted),
        }
        finished = scheduler.update_from_output(batch, targets.process(batch, None), now + 1)
        step["ends"] = ", ".join(request.request_id for request in finished)
        if isinstance(scheduler.policy, VTC):
            step["counters"] = ", ".join(f"{name} {n}" for name, n in scheduler.policy.counters.items())
        check_integrity(scheduler)
        rows.append(step)
    raise AssertionError(f"not done after 50 steps: {scheduler.unfinished()}")


def to_request(row: Row) -> Request:
    predicted = row.get("predicted")
    return Request(
        row["request"],
        int(row["prompt"]),
        int(row["output"]),
        int(row["arrives"]),
        priority=int(row.get("priority", 0)),
        tenant=row.get("tenant"),
        predicted_output_tokens=int(predicted) if predicted else None,
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_the_trace_worked_by_hand_is_what_the_scheduler_does(policy: str) -> None:
    text = section(policy)
    blocks, seats = re.search(r"Pool (\d+) blocks, (\d+) seats?", text).groups()
    assert replay(policy, table(text, "request"), int(blocks), int(seats)) == table(text, "step")
