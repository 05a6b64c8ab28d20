"""Which turn follows which, and what of the one before its prompt begins with."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.engine.sessions import Histories, Turn, plan_turns

BLOCK = 4


def row(
    number: int, prompt: int, output: int = 1, session: str | None = "s", ids: Sequence[int] | None = None
) -> ArrivalRecord:
    prefix_ids = None if ids is None else tuple(ids)
    return ArrivalRecord(
        f"r{number}", number, 10 * number, prompt, output, output, session=session, prefix_ids=prefix_ids
    )


def plan(*rows: ArrivalRecord, prefix_block_size: int | None = None) -> dict[str, tuple[str, str | None]]:
    turns = plan_turns(rows, prefix_block_size, lambda before, turn: 0)
    return {name: (turn.after, turn.history) for name, turn in turns.items()}


# ── who follows whom ─────────────────────────────────────────────────────────────────────────────────


def test_a_turn_follows_the_row_before_it_in_its_session_and_rows_without_one_follow_nobody() -> None:
    rows = [row(0, 5), row(1, 9, session="t"), row(2, 7, session=None), row(3, 6), row(4, 10, session="t")]
    assert plan(*rows) == {"r3": ("r0", "r0"), "r4": ("r1", "r1")}


@pytest.mark.parametrize(("prompt", "history"), [(7, None), (8, "r0"), (9, "r0")])
def test_a_turn_contains_its_history_if_prompt_and_output_of_the_one_before_fit_into_its_prompt(
    prompt: int, history: str | None
) -> None:
    assert plan(row(0, 5, output=3), row(1, prompt)) == {"r1": ("r0", history)}


def test_the_think_time_is_asked_for_the_row_before_and_the_turn() -> None:
    turns = plan_turns([row(0, 5), row(3, 6)], None, lambda before, turn: turn.arrival_ns - before.arrival_ns)
    assert turns == {"r3": Turn("r0", "r0", 30)}


def test_a_fork_follows_the_latest_row_whose_full_blocks_its_ids_begin_with() -> None:
    rows = [
        row(0, 8, ids=[1, 2]),
        row(1, 12, ids=[1, 2, 3]),
        row(2, 13, ids=[1, 2, 7, 8]),  # another message after the answer to r0
        row(3, 16, ids=[1, 2, 3, 4]),
    ]
    assert plan(*rows, prefix_block_size=BLOCK) == {
        "r1": ("r0", "r0"),
        "r2": ("r0", "r0"),
        "r3": ("r1", "r1"),
    }


def test_an_answer_asked_for_again_comes_after_the_first_and_contains_the_turn_before_both() -> None:
    rows = [row(0, 8, ids=[1, 2]), row(1, 12, ids=[1, 2, 3]), row(2, 12, ids=[1, 2, 3])]
    assert plan(*rows, prefix_block_size=BLOCK)["r2"] == ("r1", "r0")


def test_where_the_ids_name_no_earlier_row_the_turn_follows_the_row_before_it() -> None:
    rows = [row(0, 8, ids=[1, 2]), row(1, 6, ids=[5, 6]), row(2, 8, ids=[5, 9])]
    # r1 has one full block, with which r2 begins.
    assert plan(*rows, prefix_block_size=BLOCK) == {"r1": ("r0", None), "r2": ("r1", "r1")}


def test_a_short_aside_without_a_full_block_is_not_taken_for_the_history() -> None:
    rows = [row(0, 8, ids=[1, 2]), row(1, 3, ids=[9]), row(2, 12, ids=[1, 2, 3])]
    assert plan(*rows, prefix_block_size=BLOCK)["r2"] == ("r0", "r0")


rows_of_sessions = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 10), st.sampled_from(["a", "b", None])), max_size=20
)


@given(rows=rows_of_sessions, with_ids=st.booleans())
def test_every_row_but_the_first_of_its_session_follows_an_earlier_one_of_it(
    rows: list[tuple[int, int, str | None]], with_ids: bool
) -> None:
    records = [
        row(n, prompt, output, session, ids=range(-(-prompt // BLOCK)) if with_ids else None)
        for n, (prompt, output, session) in enumerate(rows)
    ]
    by_id = {r.request_id: r for r in records}
    turns = plan(*records, prefix_block_size=BLOCK if with_ids else None)
    for record in records:
        earlier = [r for r in records[: record.source_row] if r.session == record.session is not None]
        assert (record.request_id in turns) == bool(earlier)
        if not earlier:
            continue
        after, history = turns[record.request_id]
        assert by_id[after] in earlier
        if history is not None:
            assert by_id[history] in earlier
            assert by_id[history].prompt_tokens + by_id[history].target_output_tokens <= record.prompt_tokens
        if not with_ids:
            assert by_id[after] is earlier[-1] and history in (None, after)


# ── what a prompt begins with ────────────────────────────────────────────────────────────────────────

TWO_READERS = {"r1": Turn("r0", "r0", 0), "r2": Turn("r1", "r0", 0), "r3": Turn("r2", None, 0)}


def test_the_answer_is_inherited_from_the_moment_of_its_end_on_and_the_prompt_before() -> None:
    histories: Histories[int] = Histories(TWO_READERS)
    histories.start("r0", [1, 2])
    histories.end("r0", [3], end_ns=50)
    early, late = histories.inherit("r1", 49), histories.inherit("r2", 50)
    assert early is not None and (early.ended, list(early.content)) == (False, [1, 2])
    assert late is not None and (late.ended, list(late.content)) == (True, [1, 2, 3])


def test_nothing_is_inherited_from_a_request_that_was_refused_or_by_a_turn_without_history() -> None:
    histories: Histories[int] = Histories(TWO_READERS)
    assert histories.inherit("r1", 99) is None
    assert histories.inherit("r3", 99) is None
    assert histories.inherit("r0", 99) is None


def test_content_is_forgotten_with_its_last_reader_and_never_kept_without_one() -> None:
    histories: Histories[int] = Histories(TWO_READERS)
    histories.start("r0", [1])
    histories.start("r1", [1, 2])
    assert set(histories._kept) == {"r0"}
    histories.inherit("r1", 0)
    assert set(histories._kept) == {"r0"}
    histories.inherit("r2", 0)
    histories.end("r0", [2], 10)
    assert not histories._kept


def test_a_refused_turn_reads_nothing_and_keeps_nothing() -> None:
    histories: Histories[int] = Histories(TWO_READERS)
    histories.start("r0", [1])
    histories.end("r1", [], 5)
    histories.end("r2", [], 5)
    assert not histories._kept and histories.inherit("r1", 9) is None
