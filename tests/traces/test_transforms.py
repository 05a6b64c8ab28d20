from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.errors import InputError
from traces import scaling, transforms
from traces.prepare import parse_window, prepare
from traces.schema import Provenance, Trace, TraceRow

MakeTrace = Callable[..., Trace]
S = 10**9


def _trace(rows: list[TraceRow], prefix_block_size: int | None = None) -> Trace:
    provenance = Provenance("rows of the test", "table", rows_in=len(rows), rows_out=len(rows))
    return Trace(iter(rows), provenance, prefix_block_size)


def _rows(*arrivals_s: float, prompt: int = 10, output: int = 5) -> list[TraceRow]:
    return [TraceRow(index, round(at * S), prompt, output) for index, at in enumerate(arrivals_s)]


@st.composite
def rows_of_a_trace(draw: st.DrawFn, min_size: int = 0) -> list[TraceRow]:
    arrivals = sorted(draw(st.lists(st.integers(0, 100 * S), min_size=min_size, max_size=30)))
    lengths = st.integers(0, 50)
    return [TraceRow(index, at, draw(lengths), draw(lengths)) for index, at in enumerate(arrivals)]


@given(
    rows_of_a_trace(),
    st.none() | st.tuples(st.integers(0, 60 * S), st.integers(61 * S, 99 * S) | st.none()),
    st.sampled_from(transforms.ZERO_OUTPUTS),
    st.none() | st.integers(2, 60),
    st.sampled_from(transforms.OVER_CONTEXTS),
    st.none() | st.integers(1, 20),
    st.none() | st.floats(0.01, 100),
)
def test_every_row_is_kept_or_counted_as_dropped_and_order_stays(
    rows: list[TraceRow],
    window: tuple[int, int | None] | None,
    zero_output: transforms.ZeroOutput,
    max_context: int | None,
    over_context: transforms.OverContext,
    head: int | None,
    speedup: float | None,
) -> None:
    trace = prepare(
        _trace(rows),
        window=window,
        zero_output=zero_output,
        max_context=max_context,
        over_context=over_context,
        head=head,
        speedup=speedup,
    )
    kept: list[TraceRow] = []
    try:
        kept.extend(trace.rows)
    except InputError as error:
        assert not kept
        assert "no row is left" in str(error)
    provenance = trace.provenance
    assert provenance.rows_in == len(rows) == provenance.rows_out + provenance.dropped.total()
    assert provenance.rows_out == len(kept)
    assert [row.source_row for row in kept] == sorted({row.source_row for row in kept})
    assert [row.arrival_ns for row in kept] == sorted(row.arrival_ns for row in kept)
    assert all(row.prompt_tokens >= 1 for row in kept)
    if window is None:
        assert not kept or kept[0].arrival_ns == 0


def test_a_window_is_half_open_and_re_based_to_its_own_start() -> None:
    trace = transforms.window(_trace(_rows(1, 2, 3, 4)), 2 * S, 4 * S)
    assert [(row.source_row, row.arrival_ns) for row in trace.rows] == [(1, 0), (2, 1 * S)]
    assert trace.provenance.dropped == {"before_window": 1, "after_window": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("600:900", (600 * S, 900 * S)), ("0.5:", (S // 2, None)), (":2", (0, 2 * S)), (":", (0, None))],
)
def test_a_window_is_written_as_two_times_in_seconds(text: str, expected: tuple[int, int | None]) -> None:
    assert parse_window(text) == expected


@pytest.mark.parametrize("text", ["", "5", "a:b", "9:3", "3:3", "-1:3", "nan:3", "1:inf"])
def test_a_wrong_window_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--window"):
        parse_window(text)


def test_a_head_far_slower_than_the_rest_warns_with_both_rates() -> None:
    quiet = [100.0 * index for index in range(10)]
    busy = [1000 + index / 10 for index in range(200)]
    trace = transforms.head(_trace(_rows(*quiet, *busy)), 10)
    assert len(list(trace.rows)) == 10
    (warning,) = trace.provenance.warnings
    assert "0.0111/s" in warning
    assert "below the later rate" in warning
    assert trace.provenance.dropped == {"after_head": 200}


def test_a_head_like_the_rest_does_not_warn() -> None:
    trace = transforms.head(_trace(_rows(*range(100))), 10)
    assert len(list(trace.rows)) == 10
    assert trace.provenance.warnings == []


@pytest.mark.parametrize(
    ("options", "dropped"), [({"head": 10}, {"after_head": 5}), ({"window": "0:10"}, {"after_window": 6})]
)
def test_rows_past_the_read_on_limit_are_not_read(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, object], dropped: dict[str, int]
) -> None:
    monkeypatch.setattr(transforms, "READ_ON_ROWS", 5)
    rest = iter(_rows(*range(100)))
    provenance = Provenance("rows of the test", "table", rows_in=100, rows_out=100)
    trace = prepare(Trace(rest, provenance), **options)  # type: ignore[arg-type]
    assert len(list(trace.rows)) == 10
    assert provenance.dropped == dropped
    assert len(list(rest)) == 90 - sum(dropped.values())
    assert "were not read" in provenance.warnings[0]


@pytest.mark.parametrize(("rule", "outputs"), [("drop", [20]), ("keep", [20, 0]), ("floor1", [20, 1])])
def test_zero_output_rows_follow_the_rule_and_the_others_keep_their_output(
    rule: str, outputs: list[int]
) -> None:
    rows = [TraceRow(0, 0, 9, 20), TraceRow(1, 0, 9, 0), TraceRow(2, 0, 0, 3)]
    trace = transforms.zero_output(_trace(rows), rule)  # type: ignore[arg-type]
    assert [row.output_tokens for row in trace.rows] == outputs
    assert trace.provenance.dropped["empty_prompt"] == 1
    assert trace.provenance.dropped["zero_output"] == (rule == "drop")
    assert trace.provenance.transforms[-1]["rows"] == 1


@pytest.mark.parametrize(
    ("rule", "lengths"),
    [
        ("refuse", [(60, 40), (60, 41), (200, 5)]),
        ("truncate", [(60, 40), (60, 40), (99, 1)]),
        ("drop", [(60, 40)]),
    ],
)
def test_rows_over_the_context_are_kept_cut_or_dropped_and_counted(
    rule: str, lengths: list[tuple[int, int]]
) -> None:
    rows = [TraceRow(0, 0, 60, 40), TraceRow(1, 0, 60, 41), TraceRow(2, 0, 200, 5)]
    trace = transforms.cap_context(_trace(rows), 100, rule)  # type: ignore[arg-type]
    assert [(row.prompt_tokens, row.output_tokens) for row in trace.rows] == lengths
    assert trace.provenance.transforms[-1]["rows"] == 2
    assert trace.provenance.dropped["over_context"] == (2 if rule == "drop" else 0)


def test_a_cut_prompt_keeps_the_ids_of_the_blocks_it_still_has() -> None:
    rows = [TraceRow(0, 0, 1500, 10, prefix_ids=(1, 2, 3))]
    (row,) = transforms.cap_context(_trace(rows, 512), 600, "truncate").rows
    assert (row.prompt_tokens, row.output_tokens, row.prefix_ids) == (599, 1, (1, 2))


@given(rows_of_a_trace(min_size=3), st.floats(1e-3, 1e3))
def test_speeding_up_keeps_order_ties_and_proportions(rows: list[TraceRow], factor: float) -> None:
    scaled = list(scaling.speedup(_trace(rows), factor).rows)
    assert [row._replace(arrival_ns=0) for row in scaled] == [row._replace(arrival_ns=0) for row in rows]
    for before, after in zip(rows, scaled, strict=True):
        assert abs(after.arrival_ns - Fraction(before.arrival_ns) / Fraction(repr(factor))) <= Fraction(1, 2)


def test_speeding_up_keeps_the_cv(make_trace: MakeTrace) -> None:
    from traces.info import summarize

    rows = _rows(0, 1, 1, 5, 5.5, 12, 40)
    before, after = summarize(make_trace(rows)), summarize(scaling.speedup(make_trace(rows), 8))
    assert after.rate == pytest.approx(8 * before.rate)
    assert after.cv == pytest.approx(before.cv)


@given(rows_of_a_trace(min_size=2), st.floats(1e-3, 1e3))
def test_the_target_rate_is_reached(rows: list[TraceRow], rate: float) -> None:
    trace = scaling.target_rate(_trace(rows), rate)
    if rows[0].arrival_ns == rows[-1].arrival_ns:
        with pytest.raises(InputError, match="arrive at one time"):
            list(trace.rows)
        return
    scaled = list(trace.rows)
    span_ns = scaled[-1].arrival_ns - scaled[0].arrival_ns
    assert abs(span_ns - len(rows) * S / rate) <= 1 + 1e-6 * span_ns


def test_a_faster_clock_shortens_how_long_responses_took_alike() -> None:
    (row,) = scaling.speedup(_trace([TraceRow(0, 4 * S, 10, 5, elapsed_ns=3 * S)]), 4).rows
    assert (row.arrival_ns, row.elapsed_ns) == (S, 3 * S // 4)


def test_an_infinite_rate_lets_all_arrive_at_once_in_their_order() -> None:
    trace = prepare(_trace(_rows(3, 5, 9)), rate=math.inf)
    assert [(row.source_row, row.arrival_ns) for row in trace.rows] == [(0, 0), (1, 0), (2, 0)]
    assert trace.provenance.transforms[-1] == {"name": "target_rate", "rate": "inf", "speedup": None}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("speedup", math.inf),
        *((option, value) for option in ("speedup", "rate") for value in (math.nan, -math.inf, 0.0, -1.0)),
    ],
)
def test_a_factor_that_is_not_finite_and_positive_is_refused_at_once(option: str, value: float) -> None:
    with pytest.raises(InputError, match=f"--{option}"):
        prepare(_trace(_rows(0, 1)), **{option: value})  # type: ignore[arg-type]


def test_a_factor_that_carries_arrivals_past_64_bits_is_refused() -> None:
    with pytest.raises(InputError, match="292 years"):
        list(scaling.speedup(_trace(_rows(0, 1)), 1e-300).rows)


def test_speedup_and_rate_together_are_refused() -> None:
    with pytest.raises(InputError, match="give one"):
        prepare(_trace(_rows(0, 1)), speedup=2, rate=2)


@pytest.mark.parametrize(
    "options",
    [
        {"head": 0},
        {"zero_output": "maybe"},
        {"max_context": 1},
        {"max_context": 9, "over_context": "maybe"},
        {"window": (-1, 4)},
        {"window": (4, 4)},
    ],
)
def test_an_option_out_of_range_is_refused_at_once(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match="--"):
        prepare(_trace(_rows(0, 1)), **options)  # type: ignore[arg-type]


def test_the_steps_of_prepare_come_in_the_documented_order() -> None:
    trace = prepare(
        _trace(_rows(*range(10))), speedup=2, head=3, max_context=99, window="2:9", zero_output="floor1"
    )
    assert [row.arrival_ns for row in trace.rows] == [0, S // 2, S]
    names = [entry["name"] for entry in trace.provenance.transforms]
    assert names == ["window", "zero_output", "cap_context", "head", "speedup"]


def test_the_head_counts_rows_that_can_be_served() -> None:
    rows = [TraceRow(index, index * S, 5, index % 2) for index in range(10)]
    assert [row.source_row for row in prepare(_trace(rows), head=3).rows] == [1, 3, 5]


def test_a_trace_whose_rows_are_all_dropped_says_by_what() -> None:
    with pytest.raises(InputError, match=r"no row is left \(zero_output 2\)"):
        list(prepare(_trace(_rows(0, 1, output=0))).rows)
