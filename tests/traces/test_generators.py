"""Arrival processes, ServeGen clients and conversations."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tinyllm.errors import InputError
from traces.arrivals import ARRIVAL_MODELS, Diurnal, Gamma, OnOff, Poisson, Weibull, parse_arrivals
from traces.conversations import Conversations, generate_conversations
from traces.export import write_trace
from traces.generate import generate
from traces.info import summarize
from traces.lengths import Constant
from traces.load import open_trace
from traces.schema import TraceRow
from traces.servegen import generate_clients, read_clients
from traces.synthetic import SyntheticOptions, make_synthetic

S = 10**9


@pytest.mark.parametrize("name", ARRIVAL_MODELS)
def test_every_process_starts_at_0_never_steps_back_and_repeats_itself(name: str) -> None:
    model = ARRIVAL_MODELS[name]()
    first, second = (model.sample(np.random.default_rng(5), 3_000, 2.0) for _ in range(2))
    assert first[0] == 0 and len(first) == 3_000
    assert (np.diff(first) >= 0).all()
    assert (first == second).all()
    assert (first != model.sample(np.random.default_rng(6), 3_000, 2.0)).any()
    assert model.sample(np.random.default_rng(5), 1, 2.0).tolist() == [0]


@pytest.mark.parametrize(
    "model", [Poisson(), Gamma(2.5), Weibull(2.5), Weibull(0.4), OnOff(2, 6), Diurnal(0.8, 1_000, 300)]
)
def test_every_process_has_the_rate_that_was_asked_for(model: Poisson) -> None:
    times = model.sample(np.random.default_rng(1), 60_000, 20.0)
    assert 59_999 / (times[-1] / 1e9) == pytest.approx(20, rel=0.06)


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.0, 5.0])
def test_weibull_gaps_have_the_cv_that_was_asked_for(cv: float) -> None:
    gaps = np.diff(Weibull(cv).sample(np.random.default_rng(2), 200_000, 1.0))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_on_off_arrivals_come_at_the_high_rate_or_not_at_all() -> None:
    times = OnOff(on=10, off=30).sample(np.random.default_rng(3), 40_000, 5.0) / 1e9
    gaps = np.diff(times)
    # While on 20/s: nearly all gaps are short, and the long ones make up the three quarters that are off.
    assert np.median(gaps) == pytest.approx(math.log(2) / 20, rel=0.05)
    assert gaps[gaps > 1].sum() / times[-1] == pytest.approx(0.75, abs=0.05)


def test_diurnal_arrivals_peak_where_they_should() -> None:
    times = Diurnal(amplitude=0.9, period=100, peak=25).sample(np.random.default_rng(4), 50_000, 10.0) / 1e9
    counts = np.bincount((times % 100 // 10).astype(int), minlength=10)
    middles = np.arange(5, 100, 10)
    wanted = 1 + 0.9 * np.cos(2 * np.pi * (middles - 25) / 100)
    assert counts / counts.mean() == pytest.approx(wanted, abs=0.08)


def test_arrival_models_are_written_as_a_name_and_numbers() -> None:
    assert parse_arrivals("poisson") == Poisson()
    assert parse_arrivals("weibull:cv=2") == Weibull(2)
    assert parse_arrivals("on-off:on=1,off=3") == OnOff(1, 3)


@pytest.mark.parametrize(
    "text",
    [
        "gauss",
        "poisson:cv=2",
        "gamma:cv=-1",
        "weibull:cv=nan",
        "weibull:cv=0",
        "on-off:on=0",
        "on-off:off=inf",
        "diurnal:amplitude=1.1",
        "diurnal:period=0",
        "gamma:cv",
    ],
)
def test_a_wrong_arrival_model_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--arrivals"):
        parse_arrivals(text)


def test_a_preset_takes_another_process_and_not_a_cv_with_it() -> None:
    rows = list(generate("poisson", requests=50, seed=1, arrivals=Weibull(2)).rows)
    plain = list(generate("poisson", requests=50, seed=1).rows)
    assert [r._replace(arrival_ns=0) for r in rows] == [r._replace(arrival_ns=0) for r in plain]
    assert rows != plain
    with pytest.raises(InputError, match="--cv"):
        generate("poisson", requests=50, seed=1, arrivals=Weibull(2), cv=2)


@pytest.fixture
def clients(tmp_path: Path) -> Path:
    folder = tmp_path / "clients"
    folder.mkdir()
    (folder / "chunk-0-trace.csv").write_text(
        "0,20,2.0,Gamma,0.25,0.2\n600,0,0,,,\n1200,10,1,Weibull,1.0,0.1\n"
    )
    (folder / "chunk-1-trace.csv").write_text("0,5,1,Gamma,1,0.2\r\n\r\n600,5,1,Gamma,1,0.2\r\n1200,,,,,\r\n")
    (folder / "notes.csv").write_text("not a client\n")
    return folder


def test_clients_keep_to_their_windows_rates_and_names(clients: Path) -> None:
    rows = list(generate_clients(clients, seed=1).rows)
    counts = Counter((row.tenant, row.arrival_ns // (600 * S)) for row in rows)
    assert set(counts) == {
        ("chunk-0-trace", 0),
        ("chunk-0-trace", 2),
        ("chunk-1-trace", 0),
        ("chunk-1-trace", 1),
    }
    assert counts["chunk-0-trace", 0] == pytest.approx(12_000, rel=0.1)
    assert counts["chunk-0-trace", 2] == pytest.approx(6_000, rel=0.05)
    assert counts["chunk-1-trace", 0] == pytest.approx(3_000, rel=0.1)
    assert [row.arrival_ns for row in rows] == sorted(row.arrival_ns for row in rows)
    assert [row.source_row for row in rows] == list(range(len(rows)))


def test_clients_have_the_burstiness_of_their_shape(clients: Path) -> None:
    summary = summarize(generate_clients(clients / "chunk-0-trace.csv", seed=1, requests=8_000))
    assert summary.rows == 8_000
    assert summary.cv == pytest.approx(2, rel=0.1)


def test_a_rate_scales_all_clients(clients: Path) -> None:
    summary = summarize(generate_clients(clients, seed=1, rate=3, prompt=Constant(7)))
    assert summary.rows == pytest.approx(3 * 1_800, rel=0.1)
    assert summary.prompt.max == 7
    assert list(generate_clients(clients, seed=1).rows) == list(generate_clients(clients, seed=1).rows)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has 0 windows"),
        ("0,5,1,Gamma,1,0.2\n", "has 1 windows"),
        ("0,5,1,Gamma,1,0.2\n0,5,1,Gamma,1,0.2\n", r"row 1 \(line 2\): starts before"),
        ("0,5,1,Pareto,1,0.2\n600,,,,,\n", r"row 0 \(line 1\): family is 'Pareto'"),
        ("0,-5,1,Gamma,1,0.2\n600,,,,,\n", r"row 0 \(line 1\): rate is"),
        ("0,5,1,Gamma,0,0.2\n600,,,,,\n", "shape is 0"),
        ("0,5,1,Gamma,1\n600,,,,,\n", "has 5 cells"),
        ("0,nan,1,Gamma,1,1\n600,,,,,\n", "rate is 'nan'"),
        ("start,rate\n0,5\n", "start is 'start'"),
    ],
)
def test_a_wrong_client_file_is_refused_naming_the_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "client.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_clients(path)


def test_clients_that_are_idle_or_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no CSV"):
        read_clients(tmp_path)
    (tmp_path / "idle.csv").write_text("0,,,,,\n600,,,,,\n")
    with pytest.raises(InputError, match="make no request"):
        generate_clients(tmp_path, seed=0)
    (tmp_path / "busy.csv").write_text("0,1000000,1,Gamma,1,1\n600,,,,,\n")
    with pytest.raises(InputError, match="smaller --rate"):
        generate_clients(tmp_path, seed=0)


def _by_session(rows: list[TraceRow]) -> dict[str, list[TraceRow]]:
    sessions: dict[str, list[TraceRow]] = defaultdict(list)
    for row in rows:
        assert row.session is not None
        sessions[row.session].append(row)
    return sessions


def test_a_turn_holds_the_turns_before_it_and_the_ids_say_so() -> None:
    trace = generate_conversations(requests=3_000, seed=2)
    rows = list(trace.rows)
    assert len(rows) == trace.provenance.rows_in == trace.provenance.rows_out == 3_000
    assert [row.arrival_ns for row in rows] == sorted(row.arrival_ns for row in rows)
    owner: dict[int, str | None] = {}
    for turns in _by_session(rows).values():
        for before, after in pairwise(turns):
            assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
            assert before.prefix_ids is not None and after.prefix_ids is not None
            assert after.prefix_ids[: len(before.prefix_ids)] == before.prefix_ids
        for row in turns:
            assert len(row.prefix_ids or ()) == -(-row.prompt_tokens // 16)
            assert {owner.setdefault(each, row.session) for each in row.prefix_ids or ()} == {row.session}


def test_conversations_are_like_the_sessions_of_burstgpt_3() -> None:
    """Turns mean 3.13, median 2; gap between turns median 144 s, p25 48, p75 423; first prompt median 49."""
    sessions = _by_session(list(generate_conversations(requests=30_000, seed=0).rows))
    turns = [len(each) for each in sessions.values()]
    gaps = np.concatenate([np.diff([row.arrival_ns for row in each]) / 1e9 for each in sessions.values()])
    assert np.mean(turns) == pytest.approx(3.13, rel=0.05)
    assert np.median(turns) == 2
    assert np.quantile(gaps, [0.25, 0.5, 0.75]) == pytest.approx([48, 144, 423], rel=0.08)
    assert np.median([each[0].prompt_tokens for each in sessions.values()]) == pytest.approx(49, abs=3)


def test_a_conversation_ends_before_its_context_is_full() -> None:
    shape = Conversations(
        turns=50, first=Constant(90), message=Constant(20), output=Constant(30), max_context=100
    )
    rows = list(generate_conversations(shape, requests=20, seed=0).rows)
    assert len(rows) == 20
    assert {(row.prompt_tokens, row.output_tokens) for row in rows} == {(90, 10)}


def test_generated_conversations_are_exported_and_loaded_row_by_row_the_same(tmp_path: Path) -> None:
    expected = list(generate_conversations(requests=200, seed=3).rows)
    out = write_trace(generate_conversations(requests=200, seed=3), tmp_path / "trace.csv")
    trace = open_trace(out)
    assert trace.prefix_block_size == 16
    assert list(trace.rows) == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"turns": 0.5}, "--turns"),
        ({"think": math.nan}, "--think"),
        ({"think": 0.0}, "--think"),
        ({"max_context": 1}, "--max-context"),
    ],
)
def test_a_shape_out_of_range_is_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Conversations(**options)  # type: ignore[arg-type]


def test_one_entry_makes_each_kind_and_refuses_options_of_another(clients: Path) -> None:
    assert len(list(make_synthetic(SyntheticOptions(requests=5, arrivals="on-off")).rows)) == 5
    made = make_synthetic(
        SyntheticOptions(requests=5, conversations=True, prompt_lengths="constant:tokens=9")
    )
    assert min(row.prompt_tokens for row in made.rows) == 9
    assert len(list(make_synthetic(SyntheticOptions(requests=5, clients=clients)).rows)) == 5
    for options in (
        SyntheticOptions(clients=clients, conversations=True),
        SyntheticOptions(clients=clients, arrivals="poisson"),
        SyntheticOptions(conversations=True, cv=2),
    ):
        with pytest.raises(InputError, match="does not go with"):
            make_synthetic(options)
