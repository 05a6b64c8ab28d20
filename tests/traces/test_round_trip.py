"""Case T7 for every transform: what is prepared and exported loads, and replays, row by row the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tinyllm.errors import InputError
from traces.export import write_trace
from traces.load import open_trace
from traces.prepare import prepare
from traces.schema import Provenance, Trace, TraceRow

S = 10**9
PREFIX_BLOCK = 64

OPTIONS = st.fixed_dictionaries(
    {"seed": st.integers(0, 9)},
    optional={
        "window": st.sampled_from(["3:25", "0.5:", ":20"]),
        "thin": st.floats(0.4, 1),
        "spread_ticks": st.sampled_from([0.25, 1.0, 3.0]),
        "superpose": st.sampled_from(["2:0.5", "3:7"]),
        "length_scale": st.sampled_from([0.25, 0.5, 3.0]),
        "zero_output": st.sampled_from(["drop", "floor1"]),
        "head": st.integers(1, 20),
        "idle_cap": st.floats(0.1, 5),
    },
)
CLOCKS = st.one_of(
    st.just({}),
    st.builds(lambda factor: {"speedup": factor}, st.floats(0.1, 50)),
    st.builds(lambda rate: {"rate": rate}, st.floats(0.1, 50)),
)


@st.composite
def any_rows(draw: st.DrawFn) -> list[TraceRow]:
    """Rows of a clock in whole seconds, with failures, tenants, sessions and ids of 64-token blocks."""
    rows = []
    for index, at in enumerate(sorted(draw(st.lists(st.integers(0, 30), min_size=1, max_size=25)))):
        prompt = draw(st.integers(0, 200))
        ids = draw(st.lists(st.integers(0, 5), min_size=4, max_size=4))[: -(-prompt // PREFIX_BLOCK)]
        who = draw(st.sampled_from([None, "a", "b"])), draw(st.sampled_from([None, "x", "y", "z"]))
        rows.append(TraceRow(index, at * S, prompt, draw(st.integers(0, 40)), *who, index % 3, tuple(ids)))
    return rows


def _prepared(rows: list[TraceRow], options: dict[str, Any]) -> Trace:
    provenance = Provenance("rows of the test", "table", rows_in=len(rows), rows_out=len(rows))
    return prepare(Trace(iter(rows), provenance, PREFIX_BLOCK), **options)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@settings(max_examples=50)
@given(rows=any_rows(), options=OPTIONS, clock=CLOCKS)
def test_prepared_rows_are_exported_loaded_and_replayed_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    suffix: str,
    rows: list[TraceRow],
    options: dict[str, Any],
    clock: dict[str, Any],
) -> None:
    try:
        expected = list(_prepared(rows, options | clock).rows)
    except InputError as error:
        event("refused: " + ("no row is left" if "no row is left" in str(error) else "no time is spanned"))
        return
    event("rows are left")
    trace = _prepared(rows, options | clock)
    out = write_trace(trace, tmp_path_factory.mktemp("trip") / f"trace{suffix}")
    loaded = open_trace(out)
    assert list(loaded.rows) == expected
    assert loaded.prefix_block_size == trace.prefix_block_size
    replayed = list(prepare(out).rows)
    # A CSV file does not carry the provenance, which says whether its clock has a start of its own.
    start = 0 if suffix == ".parquet" else expected[0].arrival_ns
    assert replayed == [row._replace(arrival_ns=row.arrival_ns - start) for row in expected]
