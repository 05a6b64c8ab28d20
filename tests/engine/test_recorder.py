"""The recorder against a brute-force one that looks at every row of every step of random simulated worlds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinyllm.engine.record.workload import NS

BROAD = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FEW = settings(BROAD, max_examples=15)

Run = Callable[..., tuple[Any, dict[str, list[dict[str, Any]]]]]


def in_any_order(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows)


@BROAD
@given(st.data())
def test_every_table_agrees_with_a_recorder_that_looks_at_every_row_of_every_step(
    world: st.SearchStrategy[Any], run_in: Run, data: st.DataObject
) -> None:
    truth, tables = run_in(data.draw(world))
    expected = truth.tables()
    assert tables["steps"] == expected["steps"]
    for name in ("requests", "events", "spans"):
        assert in_any_order(tables[name]) == in_any_order(expected[name]), name


@BROAD
@given(st.data())
def test_spans_and_step_ends_give_back_the_time_of_every_token(
    world: st.SearchStrategy[Any], run_in: Run, data: st.DataObject
) -> None:
    truth, tables = run_in(data.draw(world))
    end_of = {row["step"]: row["end"] for row in tables["steps"]}
    times: dict[str, list[float]] = {}
    for span in tables["spans"]:
        # A decode span samples in each of its steps, a prefill span at most in its last.
        for step in range(span["last_step"] - span["sampled"] + 1, span["last_step"] + 1):
            times.setdefault(span["request_id"], []).append(end_of[step])
    assert {request_id: sorted(found) for request_id, found in times.items()} == {
        request_id: [time / NS for time in expected] for request_id, expected in truth.token_times.items()
    }


@FEW
@given(st.data())
def test_tables_do_not_depend_on_how_often_they_are_flushed(
    world: st.SearchStrategy[Any], run_in: Run, data: st.DataObject
) -> None:
    drawn = data.draw(world)
    often, once = (run_in(replace(drawn, flush_rows=rows))[1] for rows in (3, 10_000))
    assert often == once


@FEW
@given(st.data())
def test_the_sums_of_steps_are_those_of_spans_and_of_requests(
    world: st.SearchStrategy[Any], run_in: Run, data: st.DataObject
) -> None:
    _, tables = run_in(data.draw(world))

    def total(table: str, column: str, **where: Any) -> int:
        rows = [row for row in tables[table] if where.items() <= row.items()]
        return sum(row[column] or 0 for row in rows)

    assert total("spans", "tokens", phase="prefill") == total("steps", "prefill_tokens")
    assert total("spans", "tokens", phase="decode") == total("steps", "decode_tokens")
    assert total("requests", "output_tokens") == total("steps", "sampled_tokens")
    assert total("requests", "preemptions") == total("steps", "preempted")


def test_the_worlds_hold_what_they_are_there_for(world: st.SearchStrategy[Any], run_in: Run) -> None:
    """Guards the tests above against worlds so tame that they prove nothing."""
    seen: Counter[str] = Counter()

    @settings(BROAD, max_examples=80, derandomize=True, database=None)
    @given(world)
    def look(drawn: Any) -> None:
        _, tables = run_in(drawn)
        seen.update(event["event"] for event in tables["events"])
        seen["hit"] += sum(bool(row["cached_prompt_tokens"]) for row in tables["requests"])
        for request in tables["requests"]:
            spans = [span for span in tables["spans"] if span["request_id"] == request["request_id"]]
            pairs = list(pairwise(spans))
            # Two decode spans in a row: it paused between them, and kept its blocks.
            seen["decode paused"] += sum(a["phase"] == b["phase"] == "decode" for a, b in pairs)
            unfinished = [
                (a, b) for a, b in pairs if a["phase"] == b["phase"] == "prefill" and not a["sampled"]
            ]
            seen["prefill paused"] += len(unfinished) if not request["preemptions"] else 0

    look()
    wanted = ("preempted", "resumed", "aborted", "rejected", "unfinished", "finished", "hit")
    wanted += ("decode paused", "prefill paused")
    assert min(seen[name] for name in wanted) >= 5, seen
