from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.formats.cells import CellError, parse_count, parse_ids, parse_integer, parse_iso, parse_time


@pytest.mark.parametrize("cell", ["472", "472.0", " 472 ", 472, 472.0, Decimal("472.00"), "4.72e2"])
def test_a_whole_number_is_a_count_however_it_is_written(cell: object) -> None:
    assert parse_count(cell) == 472


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("12.5", "not a whole number"),
        ("-1", "negative"),
        (-1, "negative"),
        ("", "empty"),
        (None, "empty"),
        ("NaN", "not a number"),
        (float("nan"), "not a finite number"),
        (float("inf"), "not a finite number"),
        ("1_000", "not a number"),
        ("١٢", "not a number"),
        ("0x10", "not a number"),
        (True, "not a number"),
        ([1], "not a number"),
        ("1e999", "over 2"),
        ("9" * 5000, "not a number"),
        ("99999999999999999999", "over 2"),
    ],
)
def test_what_is_no_count_is_refused_with_the_reason(cell: object, said: str) -> None:
    with pytest.raises(CellError, match=said):
        parse_count(cell)


@pytest.mark.parametrize(
    ("cell", "unit", "nanoseconds"),
    [
        ("19440110.0", "s", 19_440_110_000_000_000),
        ("0.1", "s", 100_000_000),
        (0.1, "s", 100_000_000),
        ("1700000000.123456789", "s", 1_700_000_000_123_456_789),
        ("4.314579", "s", 4_314_579_000),
        (2_999, "ms", 2_999_000_000),
        ("1.5", "us", 1_500),
        ("7", "ns", 7),
        ("0.5", "ns", 0),
        ("1.5", "ns", 2),
        ("2.5", "ns", 2),
    ],
)
def test_times_are_exact_and_round_half_to_even_below_a_nanosecond(
    cell: object, unit: str, nanoseconds: int
) -> None:
    assert parse_time(cell, unit) == nanoseconds


@pytest.mark.parametrize("cell", ["", None, "nan", "inf", "-0.1", float("nan"), "1e12", "soon"])
def test_what_is_no_time_is_refused(cell: object) -> None:
    with pytest.raises(CellError):
        parse_time(cell, "s")


@given(st.integers(0, 2**63 - 1))
def test_a_nanosecond_count_written_in_seconds_comes_back(nanoseconds: int) -> None:
    text = f"{nanoseconds // 10**9}.{nanoseconds % 10**9:09d}"
    if nanoseconds // 10**9 < (2**63 - 1) // 10**9:
        assert parse_time(text, "s") == nanoseconds


def test_iso_stamps_of_every_azure_form_are_the_same_instant() -> None:
    forms = [
        "2023-11-16 18:17:03.9799600",
        "2023-11-16T18:17:03.979960Z",
        "2023-11-16 18:17:03.979960+00:00",
        "2023-11-16 20:17:03.97996+02:00",
        "2023-11-16 16:47:03.979960000-0130",
    ]
    assert {parse_iso(form) for form in forms} == {1_700_158_623_979_960_000}
    assert parse_iso("2024-05-12 00:00:00") == 1_715_472_000_000_000_000


@pytest.mark.parametrize("stamp", ["", None, "2023-02-30 00:00:00", "2023-11-16", "2023-11-16 25:00:00", 5])
def test_what_is_no_date_time_is_refused(stamp: object) -> None:
    with pytest.raises(CellError):
        parse_iso(stamp)


def test_a_priority_may_be_negative_but_not_a_fraction() -> None:
    assert parse_integer("-3.0") == -3
    with pytest.raises(CellError, match="whole"):
        parse_integer("-3.5")


@pytest.mark.parametrize("cell", [[1, 2], "[1, 2]", "1 2", " 1  2 "])
def test_block_ids_are_read_from_lists_and_text(cell: object) -> None:
    assert parse_ids(cell) == (1, 2)


@pytest.mark.parametrize("cell", [None, [1.5], [True], ["1"], "a b", "[1, 2", {"a": 1}, [2**64]])
def test_what_is_no_list_of_ids_is_refused(cell: object) -> None:
    with pytest.raises(CellError):
        parse_ids(cell)
