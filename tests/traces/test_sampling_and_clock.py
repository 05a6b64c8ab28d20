from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.errors import InputError
from traces import clock, sampling
from traces.export import write_trace
from traces.info import summarize
from traces.load import open_trace
from traces.prepare import prepare
from traces.schema import Provenance, Trace, TraceRow

S = 10**9


def _trace(rows: list[TraceRow], prefix_block_size: int | None = None) -> Trace:
    provenance = Provenance("rows of the test", "table", rows_in=len(rows), rows_out=len(rows))
    return Trace(iter(rows), provenance, prefix_block_size)


def _rows(*arrivals_s: float) -> list[TraceRow]:
    return [TraceRow(index, round(at * S), 10, 5) for index, at in enumerate(arrivals_s)]


@st.composite
def rows_in_ticks(draw: st.DrawFn) -> list[TraceRow]:
    """Rows of a clock in whole seconds, some in sessions, with the ids of 4-token blocks."""
    stamps = sorted(draw(st.lists(st.integers(0, 30), min_size=1, max_size=30)))
    rows = []
    for index, stamp in enumerate(stamps):
        session = draw(st.sampled_from([None, "a", "b", "c"]))
        ids = tuple(draw(st.lists(st.integers(-5, 5), min_size=2, max_size=2)))
        rows.append(TraceRow(index, stamp * S, 8, 5, session=session, prefix_ids=ids))
    return rows


@given(rows_in_ticks(), st.floats(0.01, 1), st.integers(0, 9))
def test_thinning_keeps_or_drops_whole_sessions_and_counts_them(
    rows: list[TraceRow], share: float, seed: int
) -> None:
    trace = sampling.thin(_trace(rows, 4), share, seed)
    kept = list(trace.rows)
    provenance = trace.provenance
    assert provenance.rows_in == provenance.rows_out + provenance.dropped["thinned"] == len(rows)
    assert kept == [row for row in rows if row in kept]
    sessions = {row.session for row in kept} - {None}
    assert [r for r in rows if r.session in sessions] == [r for r in kept if r.session is not None]


def test_thinning_keeps_about_the_share_and_more_of_it_keeps_the_same() -> None:
    rows = [TraceRow(index, index, 1, 1, session=f"s{index // 2}") for index in range(8_000)]
    few, many = (set(sampling.thin(_trace(rows), share, 3).rows) for share in (0.25, 0.5))
    assert len(few) / len(rows) == pytest.approx(0.25, abs=0.03)
    assert len(many) / len(rows) == pytest.approx(0.5, abs=0.03)
    assert few < many
    assert many != set(sampling.thin(_trace(rows), 0.5, 4).rows)


@given(rows_in_ticks(), st.integers(2, 4), st.integers(1, 40 * S))
def test_superposed_copies_are_the_trace_shifted_and_share_nothing(
    rows: list[TraceRow], copies: int, shift_ns: int
) -> None:
    trace = sampling.superpose(_trace(rows, 4), copies, shift_ns)
    made = list(trace.rows)
    assert [row.arrival_ns for row in made] == sorted(row.arrival_ns for row in made)
    assert trace.provenance.rows_in == trace.provenance.rows_out == len(made) == copies * len(rows)
    stride = trace.provenance.transforms[-1]["stride"]
    parts: dict[int, list[TraceRow]] = defaultdict(list)
    for row in made:
        parts[row.source_row // stride].append(row)
    seen = Counter[object]()
    for copy, part in parts.items():
        assert [row.source_row % stride for row in part] == [row.source_row for row in rows]
        assert [row.arrival_ns - copy * shift_ns for row in part] == [row.arrival_ns for row in rows]
        names = {row.session: old.session for row, old in zip(part, rows, strict=True)}
        assert len(names) == len(set(names.values()))
        ids = {new: old for row, was in zip(part, rows, strict=True) for new, old in _pairs(row, was)}
        assert len(ids) == len(set(ids.values()))
        seen.update(set(ids) | {name for name in names if name is not None})
    assert len({row.source_row for row in made}) == len(made)
    assert set(seen.values()) == {1}


def _pairs(row: TraceRow, was: TraceRow) -> zip[tuple[int, int]]:
    return zip(row.prefix_ids or (), was.prefix_ids or (), strict=True)


def test_superposing_keeps_the_ideal_hits_of_each_copy(real_trace: Callable[[str], Path]) -> None:
    path = real_trace("mooncake/windows/conversation_first120s.jsonl")
    one, three = summarize(prepare(path)), summarize(prepare(path, superpose="3:7.5"))
    assert three.rows == 3 * one.rows
    assert three.prefix_hit_share == pytest.approx(one.prefix_hit_share, rel=1e-12)
    assert three.dispersion is not None and one.dispersion is not None


@given(rows_in_ticks(), st.integers(1, 5), st.integers(0, 9))
def test_spreading_keeps_order_and_stays_inside_the_tick(rows: list[TraceRow], tick: int, seed: int) -> None:
    spread = list(clock.spread_ticks(_trace(rows), tick, seed).rows)
    assert [row.source_row for row in spread] == [row.source_row for row in rows]
    assert [row.arrival_ns for row in spread] == sorted(row.arrival_ns for row in spread)
    stamps = sorted({row.arrival_ns for row in rows})
    ends = dict(zip(stamps, [*stamps[1:], stamps[-1] + tick * S], strict=True))
    for before, after in zip(rows, spread, strict=True):
        end = min(before.arrival_ns + tick * S, ends[before.arrival_ns])
        assert before.arrival_ns <= after.arrival_ns < end
    assert spread == list(clock.spread_ticks(_trace(rows), tick, seed).rows)


def test_spreading_the_ticks_of_mooncake_takes_the_clock_out_of_the_cv(
    real_trace: Callable[[str], Path],
) -> None:
    path = real_trace("mooncake/windows/conversation_first120s.jsonl")
    before, after = summarize(prepare(path)), summarize(prepare(path, spread_ticks=3, seed=1))
    assert before.cv is not None and before.cv > 2.5
    assert after.cv is not None and after.cv < 1.5
    assert after.distinct_times == after.rows == before.rows


def test_an_idle_cap_shortens_silences_and_leaves_the_other_gaps() -> None:
    trace = clock.idle_cap(_trace(_rows(0, 5, 100, 160, 161, 1000)), 60)
    assert [row.arrival_ns // S for row in trace.rows] == [0, 5, 65, 125, 126, 186]
    assert trace.provenance.transforms[-1] == {
        "name": "idle_cap",
        "cap_s": 60,
        "gaps": 2,
        "cut_ns": (35 + 779) * S,
    }


def test_an_idle_cap_of_60_s_comes_before_a_speed_up_of_10() -> None:
    """Case T6: 60 s of the trace's own time, which the speed-up turns into 6 s."""
    trace = prepare(_trace(_rows(0, 10, 310, 320)), idle_cap=60, speedup=10)
    assert [row.arrival_ns / S for row in trace.rows] == [0, 1, 7, 8]
    names = [entry["name"] for entry in trace.provenance.transforms]
    assert names == ["zero_output", "rebase", "idle_cap", "speedup"]


def test_a_silence_before_the_first_row_of_a_window_is_idle_too() -> None:
    trace = prepare(_trace(_rows(0, 500, 510)), window="100:600", idle_cap=60)
    assert [row.arrival_ns // S for row in trace.rows] == [60, 70]


def test_all_transforms_come_in_the_documented_order_and_are_in_the_provenance() -> None:
    rows = [TraceRow(index, index * S, 10, 5, session=str(index)) for index in range(40)]
    options = {"thin": 0.9, "spread_ticks": 1, "superpose": "2:5", "length_scale": 2, "head": 9}
    trace = prepare(_trace(rows), window="0:30", idle_cap=3, rate=2, max_context=99, **options)  # type: ignore[arg-type]
    assert len(list(trace.rows)) == 9
    names = [entry["name"] for entry in trace.provenance.transforms]
    assert names == [
        "window",
        "thin",
        "spread_ticks",
        "superpose",
        "length_scale",
        "zero_output",
        "cap_context",
        "head",
        "idle_cap",
        "target_rate",
    ]
    provenance = trace.provenance
    assert provenance.rows_in == provenance.rows_out + provenance.dropped.total()


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_transformed_trace_is_exported_and_prepared_again_row_by_row_the_same(
    tmp_path: Path, suffix: str
) -> None:
    rows = [TraceRow(i, i * S, 10, 5, session=str(i % 7), prefix_ids=(i, i % 3, 2)) for i in range(50)]
    options = {"thin": 0.8, "spread_ticks": 1.0, "superpose": "3:2.5", "idle_cap": 2.0, "speedup": 3.0}
    first, again = (prepare(_trace(rows, 4), seed=5, **options) for _ in range(2))  # type: ignore[arg-type]
    expected = list(first.rows)
    out = write_trace(again, tmp_path / f"trace{suffix}")
    assert list(open_trace(out).rows) == expected
    assert [row._replace(arrival_ns=0) for row in prepare(out).rows] == [
        row._replace(arrival_ns=0) for row in expected
    ]
    if suffix == ".parquet":
        assert list(prepare(out).rows) == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"thin": 0.0}, "--thin"),
        ({"thin": float("nan")}, "--thin"),
        ({"thin": 1.5}, "--thin"),
        ({"superpose": "1:5"}, "--superpose"),
        ({"superpose": "2"}, "--superpose"),
        ({"superpose": "2:0"}, "--superpose"),
        ({"superpose": "2:-1"}, "--superpose"),
        ({"superpose": "2.5:1"}, "--superpose"),
        ({"spread_ticks": 0.0}, "--spread-ticks"),
        ({"spread_ticks": float("inf")}, "--spread-ticks"),
        ({"spread_ticks": 1.0, "seed": -1}, "--seed"),
        ({"idle_cap": 0.0}, "--idle-cap"),
        ({"idle_cap": -60.0}, "--idle-cap"),
        ({"idle_cap": float("nan")}, "--idle-cap"),
    ],
)
def test_an_option_out_of_range_is_refused_by_its_name(options: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        prepare(_trace(_rows(0, 1)), **options)  # type: ignore[arg-type]


def test_prefix_ids_that_64_bits_cannot_hold_after_renaming_are_refused() -> None:
    rows = [TraceRow(0, 0, 4, 1, prefix_ids=(2**62,))]
    with pytest.raises(InputError, match="64 bits"):
        list(sampling.superpose(_trace(rows, 4), 3, S).rows)
