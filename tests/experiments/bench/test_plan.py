"""The order of the engines, the workloads of a plan, and what is refused before anything is loaded."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.bench.floor import Ceilings
from experiments.bench.options import BenchOptions
from experiments.bench.plan import make_plan, rotation
from experiments.bench.suite import load_suite
from tinyllm.errors import InputError

counts = st.integers(1, 12)


@given(items=counts, repeats=counts, engines=st.integers(1, 7))
def test_every_engine_has_every_place_equally_often(items: int, repeats: int, engines: int) -> None:
    places = Counter(place for _, _, place in rotation(items, repeats, engines))
    often = [places[place] for place in range(engines)]
    assert sum(often) == items * repeats and max(often) - min(often) <= 1


@given(items=counts, repeats=counts, engines=st.integers(1, 7))
def test_so_it_is_over_the_repeats_of_every_item(items: int, repeats: int, engines: int) -> None:
    places = Counter((item, place) for _, item, place in rotation(items, repeats, engines))
    for item in range(items):
        often = [places[item, place] for place in range(engines)]
        assert sum(often) == repeats and max(often) - min(often) <= 1


def test_turns_name_all_engines_and_take_turns_in_beginning(fake_bench: Any) -> None:
    plan = make_plan(fake_bench.options(backend="tinyllm,transformers"))
    turns = list(plan.turns(plan.engines))
    assert len(turns) == plan.repeats * len(plan.items) == 2 * 6
    assert [turn.engines[0] for turn in turns[:4]] == [*plan.engines, plan.engines[0]]
    assert all(sorted(turn.engines) == sorted(plan.engines) for turn in turns)


def test_equal_seeds_give_equal_workloads_and_others_do_not(fake_bench: Any) -> None:
    def hashes(**changes: Any) -> list[str]:
        plan = make_plan(fake_bench.options(**changes))
        return [item.resolve({"poisson": 3.0}).sha256() for item in plan.items]

    assert hashes() == hashes() == hashes(backend="vllm", seed=0)
    assert not set(hashes()) & set(hashes(seed=1))


def test_a_workload_does_not_depend_on_those_beside_it(fake_bench: Any) -> None:
    before = {item.name: item.workload for item in make_plan(fake_bench.options()).items}
    text = fake_bench.suite.read_text()
    fake_bench.suite.write_text(
        text.replace(
            "[[offline]]",
            '[[offline]]\nname = "new"\nprompt_tokens = 3\noutput_tokens = 2\nrequests = 1\n\n[[offline]]',
            1,
        )
    )
    after = {item.name: item.workload for item in make_plan(fake_bench.options()).items}
    assert {"new", *before} == set(after)
    assert all(after[name] == workload for name, workload in before.items())


def test_prompts_keep_to_their_lengths_and_have_no_special_token(fake_bench: Any) -> None:
    fake_bench.suite.write_text(fake_bench.suite.read_text().replace("requests = 2", "requests = 50"))
    for item in make_plan(fake_bench.options()).items:
        for request in item.resolve({"poisson": 1.0}).requests:
            assert 4 <= len(request.prompt_token_ids) <= 30
            # 256 to 263 are the special tokens of this checkpoint, and ids that its tokenizer does not have.
            assert all(0 <= token < 256 for token in request.prompt_token_ids)


def test_lengths_and_numbers_are_scaled(fake_bench: Any) -> None:
    plan = make_plan(fake_bench.options(length_scale=0.5, requests=1, shards=1, repeats=5))
    assert plan.repeats == 5
    pair = plan.items[0].workload
    assert pair is not None and [item.name for item in plan.items][:2] == ["pair/1", "correctness"]
    (request,) = pair.requests
    assert 2 <= len(request.prompt_token_ids) <= 5 and request.max_tokens == 3
    # A stream needs two arrivals for a rate; its warm-up shrinks with it.
    assert [len(item.stream.rows) for item in plan.items if item.stream] == [3, 3]


def test_replays_arrive_at_their_share_of_the_capacity(fake_bench: Any) -> None:
    plan = make_plan(fake_bench.options())
    half, most = (item.resolve({"poisson": 8.0}) for item in plan.items[-2:])
    for workload, load in ((half, 0.5), (most, 0.9)):
        arrivals = [request.arrival_s for request in workload.requests]
        assert arrivals == sorted(arrivals) and arrivals[0] == 0 and workload.load == load
        assert len(arrivals) / arrivals[-1] == pytest.approx(load * 8.0, rel=1e-6)
    assert half.num_warmup == 2 and len(half.requests) == 12
    assert [one.prompt_token_ids for one in half.requests] == [one.prompt_token_ids for one in most.requests]


def test_probes_go_from_the_shortest_prompt_to_the_longest(fake_bench: Any) -> None:
    (stream,) = make_plan(fake_bench.options()).streams
    lengths = [probe.num_prompt_tokens for probe in stream.probes()]
    whole = [len(request.prompt_token_ids) for request in stream.at_once().requests]
    assert lengths == sorted(lengths) and (lengths[0], lengths[-1]) == (min(whole), max(whole))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no engine": ({"backend": " , "}, "--backend: names no engine"),
    "an unknown engine": ({"backend": "tinyllm,sglang"}, "--backend sglang: unknown; choose tinyllm"),
    "an engine twice": ({"backend": "transformers,transformers-static"}, "transformers-static"),
    "no requests": ({"requests": 0}, "--requests 0: give at least 1"),
    "no scale": ({"length_scale": 0.0}, "--length-scale 0: give a number above 0"),
    "no number": ({"length_scale": float("nan")}, "--length-scale nan"),
    "a context too short": ({"length_scale": 50.0}, "do not fit the model's context of 256"),
    "a trace for no windows": (
        {"trace": Path("trace.csv")},
        "--trace trace.csv: the suite tiny has no [trace]",
    ),
    "a negative seed": ({"seed": -1}, "--seed -1: give 0 or more"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options_are_refused_before_anything_is_loaded(case: str, fake_bench: Any) -> None:
    changes, expected = WRONG[case]
    with pytest.raises(InputError) as error:
        make_plan(fake_bench.options(**changes))
    assert expected in str(error.value)


def test_a_directory_that_is_no_model_is_refused(fake_bench: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config.json; `tinyllm get-model` brings a checkpoint"):
        make_plan(replace(fake_bench.options(), model=tmp_path))


def test_the_pool_has_room_for_the_largest_workload(fake_bench: Any) -> None:
    plan = make_plan(fake_bench.options())
    most = max(
        sum(-(-(len(one.prompt_token_ids) + one.max_tokens) // 16) for one in item.workload.requests)
        for item in plan.items
        if item.workload is not None
    )
    assert most < plan.num_gpu_blocks <= 1.25 * most + 1
    assert make_plan(fake_bench.options(num_gpu_blocks=7)).num_gpu_blocks == 7


def test_the_dry_run_tells_workloads_order_and_time(fake_bench: Any) -> None:
    from experiments.bench.dry_run import describe_plan

    lines = list(describe_plan(make_plan(fake_bench.options()), Ceilings(1e9, 1e9)))
    assert any(
        line.split()[:3] == ["poisson/0.50", "12", *line.split()[2:3]] for line in lines if line.strip()
    )
    assert "  repeat 1, pair/1: tinyllm, transformers-static" in lines
    assert "  repeat 1, pair/2: transformers-static, tinyllm" in lines
    assert lines[-1].startswith("Expected: about ") and "1 GFLOP/s and 1 GB/s" in lines[-1]


def test_the_published_suites_fit_a_model_of_8192_tokens(tiny_llama: Any, make_checkpoint: Any) -> None:
    model = make_checkpoint("llama", max_position_embeddings=8192).directory
    for name in ("quick", "offline", "open-loop"):
        plan = make_plan(BenchOptions(name, model, Path("out"), requests=2))
        assert len(plan.items) >= len(load_suite(name).cohorts)
