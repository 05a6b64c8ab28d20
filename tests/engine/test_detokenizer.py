"""Pieces of text join to the decoded whole, break no character, cost no more for a long output, hide stop strings."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models

from tinyllm.engine.detokenizer import IncrementalDetokenizer, StopStrings
from tinyllm.engine.tokenizer import Tokenizer

EMOJI = "👩‍🚀"
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def on_bytes(byte_tokenizer: Any) -> Tokenizer:
    """Every byte is a token; ids 256 to 259 are special, those above are none."""
    return Tokenizer(byte_tokenizer)


@pytest.fixture(scope="module")
def with_byte_fallback() -> Tokenizer:
    """As SentencePiece models have it: `▁` for a space, the first one dropped, bytes for what has no token."""
    words = ["<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁Hello", "world", "▁世", "a", "\ufffd"]
    backend = tokenizers.Tokenizer(
        models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True, unk_token="<s>")
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    return Tokenizer(backend)


def pieces_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer)
    return [*(detokenizer.add(token_id) for token_id in ids), detokenizer.finish()]


# Bytes that belong together, torn ones, plain ASCII, special tokens and ids that no token has.
chunks = st.one_of(
    st.sampled_from([s.encode() for s in ("A", " 世", "ab", EMOJI, "é", "\ufffd")]).map(list),
    st.sampled_from([s.encode()[:-1] for s in ("世", EMOJI, "é")]).map(list),
    st.lists(st.integers(128, 255), max_size=6),
    st.lists(st.integers(0, 263), max_size=3),
)
byte_ids = st.lists(chunks, max_size=8).map(lambda lists: [token_id for ids in lists for token_id in ids])


@relaxed
@given(byte_ids)
def test_pieces_join_to_the_decoded_whole(on_bytes: Tokenizer, ids: list[int]) -> None:
    assert "".join(pieces_of(on_bytes, ids)) == on_bytes.decode(ids)


@relaxed
@given(st.lists(st.one_of(st.integers(257, 262), st.integers(0, 264), byte_ids), max_size=20))
def test_pieces_join_also_where_runs_of_byte_tokens_decode_as_a_whole(
    with_byte_fallback: Tokenizer, parts: list[int | list[int]]
) -> None:
    ids = []
    for part in parts:
        ids += [part] if isinstance(part, int) else [1 + token_id for token_id in part]
    assert "".join(pieces_of(with_byte_fallback, ids)) == with_byte_fallback.decode(ids)


@relaxed
@given(st.text(max_size=12))
def test_no_piece_of_a_text_has_a_broken_character(on_bytes: Tokenizer, text: str) -> None:
    pieces = pieces_of(on_bytes, list(text.encode()))
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_comes_with_its_last_byte(on_bytes: Tokenizer) -> None:
    assert pieces_of(on_bytes, list("A 世ab".encode())) == ["A", " ", "", "", "世", "a", "b", ""]


def test_a_space_after_a_special_token_is_not_taken_for_the_first(with_byte_fallback: Tokenizer) -> None:
    hello = with_byte_fallback.id_of("▁Hello")
    assert hello is not None
    assert pieces_of(with_byte_fallback, [hello, 0, hello]) == ["Hello", "", " Hello", ""]


@pytest.mark.parametrize("ids", [[0x41], [0xFF], [0xE4], [0x80], [0xE4, 0xB8]], ids=str)
def test_the_cost_of_a_token_does_not_grow_with_the_output(
    on_bytes: Tokenizer, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = 0
    decode = on_bytes.decode

    def counting(token_ids: list[int]) -> str:
        nonlocal decoded
        decoded += len(token_ids)
        return decode(token_ids)

    monkeypatch.setattr(on_bytes, "decode", counting)
    pieces = pieces_of(on_bytes, ids * 1000)
    monkeypatch.undo()
    assert "".join(pieces) == on_bytes.decode(ids * 1000)
    assert decoded <= 20 * 1000 * len(ids)


# ── stop strings ─────────────────────────────────────────────────────────────────────────────────────


def test_nothing_of_a_stop_string_is_shown_although_it_spans_pieces() -> None:
    stop = StopStrings(["DEFGHIJ"])
    shown = [stop.add(piece) for piece in ("AB", "CD", "EFG", "HI", "JK")]
    assert shown == [("AB", None), ("C", None), ("", None), ("", None), ("", "DEFGHIJ")]


def test_what_turns_out_to_begin_nothing_is_shown_late_but_whole() -> None:
    stop = StopStrings(["DEFGHIJ"])
    assert [stop.add(piece)[0] for piece in ("ABDEF", "GX", "DE")] == ["AB", "DEFGX", ""]
    assert stop.finish() == "DE"


@given(
    st.text("ab", max_size=14),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.data(),
)
def test_the_earliest_stop_string_ends_the_text_however_it_is_cut(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    # What is known when a stop string is complete: a longer one that begins before it may still be open.
    known, expected = "", None
    for piece in pieces:
        known += piece
        starts = [known.find(stop) for stop in stops if stop in known]
        if starts:
            expected = known[: min(starts)]
            break
    checker, shown, met = StopStrings(stops), "", None
    for piece in pieces:
        new, met = checker.add(piece)
        shown += new
        # As much as possible: what is held back does begin a stop string.
        if met is None:
            so_far = "".join(pieces)[: len(shown + checker._held)]
            assert so_far == shown + checker._held
            assert any(stop.startswith(checker._held) for stop in stops)
        else:
            break
    if expected is None:
        assert met is None and shown + checker.finish() == text
    else:
        assert met in stops and shown == expected


def test_a_stop_string_that_comes_too_early_is_ordinary_text() -> None:
    stop = StopStrings(["ab"])
    assert stop.add("xaby", may_stop=False) == ("xaby", None)
    assert stop.add("a", may_stop=False) == ("", None)
    assert stop.add("bz") == ("", "ab")
