"""Prompts cut for trace rows, and lengths scaled down: how long they are, and who shares what with whom."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.errors import InputError
from traces.prompts import PromptMaker
from traces.scaling import length_scale
from traces.schema import Provenance, Trace, TraceRow

MakeTrace = Callable[..., Trace]
CORPUS = [(n * n + 7 * n) % 61 for n in range(500)]
BLOCK = 8


def row(source_row: int, prompt: int, prefix_ids: tuple[int, ...] | None = None) -> TraceRow:
    return TraceRow(source_row, 0, prompt, 1, prefix_ids=prefix_ids)


@st.composite
def rows_with_prefixes(draw: st.DrawFn) -> list[TraceRow]:
    """Rows whose ids name a prefix, as in a trace: id = place in a tree of blocks, equal id = equal prefix."""
    rows = []
    children: dict[tuple[int, int], int] = {}
    for number in range(draw(st.integers(1, 6))):
        node, ids = 0, []
        for _ in range(draw(st.integers(1, 4))):
            node = children.setdefault((node, draw(st.integers(0, 2))), len(children) + 1)
            ids.append(node)
        prompt = BLOCK * (len(ids) - 1) + draw(st.integers(1, BLOCK))
        rows.append(row(number, prompt, tuple(ids)))
    return rows


# ── prompts ──────────────────────────────────────────────────────────────────────────────────────────


@given(rows_with_prefixes(), st.integers(0, 3))
def test_rows_share_exactly_the_blocks_whose_prefix_ids_they_share(rows: list[TraceRow], seed: int) -> None:
    maker = PromptMaker(CORPUS, seed, BLOCK)
    for a in rows:
        tokens = maker.token_ids(a)
        assert len(tokens) == a.prompt_tokens and set(tokens) <= set(CORPUS)
        for b in rows:
            other = maker.token_ids(b)
            for block, (left, right) in enumerate(zip(a.prefix_ids or (), b.prefix_ids or (), strict=False)):
                begin = BLOCK * block
                # The last block of either may be partial.
                end = min(begin + BLOCK, a.prompt_tokens, b.prompt_tokens)
                same = tokens[begin:end] == other[begin:end]
                assert same if left == right else not same or end < begin + BLOCK


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 1200)), min_size=2, max_size=8), st.integers()
)
def test_rows_without_prefix_ids_have_their_length_and_differ_in_their_first_block(
    given_rows: list[tuple[int, int]], seed: int
) -> None:
    maker = PromptMaker(CORPUS, seed)
    prompts = {number: maker.token_ids(row(number, length)) for number, length in given_rows}
    lengths = dict(given_rows)
    assert {number: len(tokens) for number, tokens in prompts.items()} == lengths
    starts = [tuple(tokens[:BLOCK]) for tokens in prompts.values() if len(tokens) >= BLOCK]
    assert len(set(starts)) == len(starts)


@given(st.integers(0, 500), st.integers(BLOCK, 40))
def test_a_row_and_a_prefix_of_the_same_number_differ(number: int, length: int) -> None:
    alone = PromptMaker(CORPUS).token_ids(row(number, length))
    ids = (number, *range(1000, 1000 - (-length // BLOCK) - 1))
    shared = PromptMaker(CORPUS, prefix_block_size=BLOCK).token_ids(row(number, length, ids))
    assert alone[:BLOCK] != shared[:BLOCK]


def test_the_same_seed_gives_the_same_prompt_and_another_seed_another() -> None:
    wanted = row(3, 200)
    assert PromptMaker(CORPUS, 1).token_ids(wanted) == PromptMaker(list(CORPUS), 1).token_ids(wanted)
    assert PromptMaker(CORPUS, 1).token_ids(wanted) != PromptMaker(CORPUS, 2).token_ids(wanted)


def test_a_prompt_longer_than_the_corpus_repeats_it() -> None:
    tokens = PromptMaker(CORPUS).token_ids(row(0, 3 * len(CORPUS)))
    assert len(tokens) == 3 * len(CORPUS)
    assert tokens[-len(CORPUS) :] == tokens[-2 * len(CORPUS) : -len(CORPUS)]


def test_prefix_ids_of_a_trace_without_a_block_size_are_not_shared() -> None:
    maker = PromptMaker(CORPUS)
    assert maker.token_ids(row(0, 16, (7, 8))) != maker.token_ids(row(1, 16, (7, 8)))


@pytest.mark.parametrize(
    ("corpus", "size", "distinct"), [(CORPUS[:63], 63, len(set(CORPUS[:63]))), (list(range(15)) * 9, 135, 15)]
)
def test_a_corpus_that_is_too_short_or_uniform_is_refused(
    corpus: list[int], size: int, distinct: int
) -> None:
    with pytest.raises(InputError, match=rf"has {size} tokens, {distinct} of them distinct; give a text"):
        PromptMaker(corpus)


# ── length_scale ─────────────────────────────────────────────────────────────────────────────────────


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=10),
    st.decimals("0.001", "10", places=3),
)
def test_every_length_is_scaled_as_the_decimal_says_and_rounded_up(
    lengths: list[tuple[int, int]], decimal: Any
) -> None:
    rows = [TraceRow(n, n, prompt, output) for n, (prompt, output) in enumerate(lengths)]
    provenance = Provenance("rows of the test", "table", rows_in=len(rows))
    scaled = length_scale(Trace(iter(rows), provenance), float(decimal), 16)
    expected = [
        before._replace(
            prompt_tokens=math.ceil(before.prompt_tokens * Fraction(decimal)),
            output_tokens=math.ceil(before.output_tokens * Fraction(decimal)),
        )
        for before in rows
    ]
    assert list(scaled.rows) == expected
    assert scaled.provenance.transforms == [{"name": "length_scale", "scale": float(decimal)}]


def test_a_tenth_of_ten_is_one_and_a_token_stays_a_token(make_trace: MakeTrace) -> None:
    rows = [TraceRow(0, 0, 10, 1), TraceRow(1, 0, 11, 0)]
    scaled = list(length_scale(make_trace(rows), 0.1, 16).rows)
    assert [(r.prompt_tokens, r.output_tokens) for r in scaled] == [(1, 1), (2, 0)]


@given(st.sampled_from([(512, 0.03125, 16), (512, 0.25, 32), (16, 0.5, 4), (16, 1.5, 8)]), st.data())
def test_prefix_blocks_shrink_along_so_every_row_keeps_its_ids(
    case: tuple[int, float, int], data: st.DataObject
) -> None:
    block, scale, block_size = case
    prompts = data.draw(st.lists(st.integers(1, 5 * block), min_size=1, max_size=6))
    rows = [TraceRow(n, 0, p, 1, prefix_ids=tuple(range(-(-p // block)))) for n, p in enumerate(prompts)]
    provenance = Provenance("rows of the test", "table", rows_in=len(rows))
    scaled = length_scale(Trace(iter(rows), provenance, block), scale, block_size)
    assert scaled.prefix_block_size == block * scale and scaled.prefix_block_size % block_size == 0
    for before, after in zip(rows, scaled.rows, strict=True):
        assert after.prefix_ids == before.prefix_ids
        assert len(after.prefix_ids or ()) == -(-after.prompt_tokens // scaled.prefix_block_size)


@given(
    st.sampled_from([8, 16, 24, 512]),
    st.integers(1, 400).map(lambda n: n / 100),
    st.sampled_from([4, 16, 24]),
)
def test_a_scale_that_does_not_suit_the_prefix_blocks_names_the_nearest_that_does(
    block: int, scale: float, block_size: int
) -> None:
    def scale_by(factor: float) -> int | None:
        empty = Trace(iter(()), Provenance("no rows", "table"), block)
        return length_scale(empty, factor, block_size).prefix_block_size

    possible = [n * block_size / block for n in range(1, 4 * block // block_size + 3)]
    exact = Fraction(str(scale))
    try:
        assert scale_by(scale) == block * exact and block * exact % block_size == 0
    except InputError as error:
        assert "\n" not in str(error)
        found = re.search(r"the nearest scale that works is (\S+)", str(error))
        assert found is not None
        named = float(found[1])
        assert scale_by(named) is not None
        assert abs(named - scale) <= min(abs(other - scale) for other in possible) + 1e-9


def test_a_scale_that_has_no_decimal_is_taken_for_the_whole_block_next_to_it(make_trace: MakeTrace) -> None:
    scaled = length_scale(make_trace([row(0, 25, (0, 1))], 24), 0.666666666667, 16)
    assert scaled.prefix_block_size == 16
    assert [r.prompt_tokens for r in scaled.rows] == [17]


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_no_number_above_0_is_refused(make_trace: MakeTrace, scale: float) -> None:
    with pytest.raises(InputError, match=r"--length-scale: .* is not a finite number above 0"):
        length_scale(make_trace([]), scale, 16)
