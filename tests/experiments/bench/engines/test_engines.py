"""Each engine of this environment, in this process, against greedy continuation by Transformers' own `generate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the engines need the engine extra")
pytest.importorskip("transformers", reason="Transformers makes the checkpoints of these tests")

from experiments.bench.engines import ENGINES, engine_class
from experiments.bench.engines.base import Engine
from experiments.bench.engines.options import EngineOptions
from experiments.bench.jobs import BenchRequest, Job, Served
from tinyllm.errors import InputError

HERE = [name for name in ENGINES if not name.startswith("vllm")]
SMALL = {"num_gpu_blocks": 64, "max_num_seqs": 4, "max_num_batched_tokens": 64}
MaxTokens = Sequence[int]


@pytest.fixture
def load() -> Iterator[Callable[..., Engine]]:
    """`load("tinyllm", directory, max_num_seqs=2)`: an engine that is closed when the test ends."""
    loaded: list[Engine] = []

    def make(name: str, directory: Path, **options: Any) -> Engine:
        loaded.append(engine_class(name)(directory, EngineOptions.of(SMALL | options)))
        return loaded[-1]

    yield make
    for engine in loaded:
        with closing(engine):
            pass


def oracle(checkpoint: Any, requests: Sequence[BenchRequest]) -> list[list[int]]:
    return [checkpoint.greedy(request.prompt_token_ids, request.max_tokens) for request in requests]


def outputs(served: Sequence[Served]) -> list[list[int]]:
    return [one.token_ids for one in served]


@pytest.mark.parametrize("name", HERE)
def test_a_batch_has_the_oracles_tokens_and_a_time_for_each(
    name: str, load: Callable[..., Engine], tiny_llama: Any, make_requests: Callable[..., list[BenchRequest]]
) -> None:
    engine, requests = load(name, tiny_llama.directory), make_requests([9, 5, 7])
    for _ in range(2):  # an engine is idle again after a job, and clocks begin anew
        served = engine.run(Job(requests))
        assert outputs(served) == oracle(tiny_llama, requests)
        for one in served:
            assert (one.finish_reason, one.error) == ("length", None)
            assert len(one.token_times_s) == len(one.token_ids)
            assert one.first_scheduled_s is not None
            assert 0 <= one.submitted_s <= one.first_scheduled_s < one.token_times_s[0] < 60
            assert one.token_times_s == sorted(one.token_times_s)
        assert max(one.submitted_s for one in served) <= min(one.token_times_s[0] for one in served)


@pytest.mark.parametrize("name", HERE)
def test_requests_are_handed_over_when_they_are_due(
    name: str, load: Callable[..., Engine], tiny_llama: Any, make_requests: Callable[..., list[BenchRequest]]
) -> None:
    requests = make_requests([4, 4, 4], [0.3, 0.0, 0.15])
    served = load(name, tiny_llama.directory).run(Job(requests))
    assert [one.request_id for one in served] == ["r0", "r1", "r2"]
    assert outputs(served) == oracle(tiny_llama, requests)
    for request, one in zip(requests, served, strict=True):
        assert one.first_scheduled_s is not None
        assert request.arrival_s <= one.submitted_s <= one.first_scheduled_s < one.token_times_s[0]


@pytest.mark.parametrize("name", HERE)
def test_eos_ends_an_output_unless_it_is_ignored(
    name: str,
    load: Callable[..., Engine],
    make_checkpoint: Callable[..., Any],
    make_requests: Callable[..., list[BenchRequest]],
) -> None:
    checkpoint, requests = make_checkpoint(), make_requests([8, 8, 8])
    expected = oracle(checkpoint, requests)
    eos = expected[0][3]
    checkpoint.edit("generation_config.json", eos_token_id=[eos, 3])
    engine = load(name, checkpoint.directory)
    assert outputs(engine.run(Job(requests))) == expected
    served = engine.run(Job(requests, ignore_eos=False))
    cut = [tokens[: tokens.index(eos) + 1] if eos in tokens else tokens for tokens in expected]
    assert len(cut[0]) < 8
    assert outputs(served) == cut
    assert [len(one.token_times_s) for one in served] == [len(tokens) for tokens in cut]
    assert [one.finish_reason for one in served] == [
        "stop" if tokens[-1] == eos else "length" for tokens in cut
    ]


@pytest.mark.parametrize("name", HERE)
def test_more_requests_than_fit_one_step_or_batch_are_all_served(
    name: str, load: Callable[..., Engine], tiny_llama: Any
) -> None:
    requests = [BenchRequest(f"r{n}", [n + 1, 5, 9 * n % 200], 3 + n % 4) for n in range(11)]
    served = load(name, tiny_llama.directory, max_num_seqs=3).run(Job(requests))
    assert outputs(served) == oracle(tiny_llama, requests)


@pytest.mark.parametrize("name", HERE)
def test_what_exceeds_the_context_is_refused_alone(
    name: str, load: Callable[..., Engine], tiny_llama: Any, make_requests: Callable[..., list[BenchRequest]]
) -> None:
    engine, requests = load(name, tiny_llama.directory, max_model_len=28), make_requests([9, 5, 9])
    served = engine.run(Job(requests))
    assert served[2].error == "prompt and output of 29 tokens exceed max_model_len 28"
    assert (served[2].token_ids, served[2].finish_reason) == ([], None)
    assert outputs(served[:2]) == oracle(tiny_llama, requests[:2])


@pytest.mark.parametrize("name", HERE)
def test_an_engine_tells_what_a_report_asks(name: str, load: Callable[..., Engine], tiny_llama: Any) -> None:
    engine = load(name, tiny_llama.directory, max_model_len=100)
    info = engine.info
    assert info.version and info.threads >= 1
    assert (info.dtype, info.max_model_len) == ("float32", 100)
    assert info.settings["max_num_seqs"] == SMALL["max_num_seqs"]
    weights, kv_pool = engine.memory
    assert weights == sum(each.numel() * 4 for each in tiny_llama.model.parameters())
    tokens = SMALL["num_gpu_blocks"] * 16
    bytes_a_token = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, channels, float32
    assert kv_pool is None if name == "transformers-static" else kv_pool >= tokens * bytes_a_token


@pytest.mark.parametrize("name", HERE)
def test_a_context_beyond_the_models_is_refused(
    name: str, load: Callable[..., Engine], tiny_llama: Any
) -> None:
    with pytest.raises(InputError, match=r"max_model_len 500: the model's context is 256"):
        load(name, tiny_llama.directory, max_model_len=500)


def test_an_id_that_is_there_twice_is_refused(load: Callable[..., Engine], tiny_llama: Any) -> None:
    with pytest.raises(InputError, match="request r: twice in the job"):
        load("tinyllm", tiny_llama.directory).run(Job([BenchRequest("r", [1], 1)] * 2))


def test_a_static_batch_holds_no_row_longer_than_the_context(
    load: Callable[..., Engine], make_checkpoint: Callable[..., Any]
) -> None:
    """GPT-2 has no position beyond: a long prompt beside a long output would end the job."""
    checkpoint = make_checkpoint("gpt2", n_positions=32)
    requests = [BenchRequest("long", list(range(1, 29)), 3), BenchRequest("short", [5, 6, 7], 20)]
    served = load("transformers-static", checkpoint.directory).run(Job(requests))
    assert outputs(served) == oracle(checkpoint, requests)


def test_a_static_server_takes_all_that_came_during_a_batch(
    load: Callable[..., Engine], tiny_llama: Any, make_requests: Callable[..., list[BenchRequest]]
) -> None:
    engine = load("transformers-static", tiny_llama.directory)
    generate, batches = engine._generate, []  # type: ignore[attr-defined]

    def slow(batch: Any, clock: Callable[[], float], ignore_eos: bool) -> Any:
        batches.append([request.request_id for request, _ in batch])
        while clock() < 0.5:
            time.sleep(0.01)
        return generate(batch, clock, ignore_eos)

    engine._generate = slow  # type: ignore[attr-defined]
    served = engine.run(Job(make_requests([3, 3, 3], [0.0, 0.3, 0.4])))
    assert batches == [["r0"], ["r1", "r2"]]
    assert served[1].submitted_s < 0.5 < served[0].token_times_s[-1] <= (served[1].first_scheduled_s or 0)


def test_a_pool_without_room_ends_the_job_of_continuous_batching_with_a_reason(
    load: Callable[..., Engine], tiny_llama: Any
) -> None:
    with pytest.raises(InputError, match="give a smaller num_gpu_blocks"):
        load("transformers-continuous", tiny_llama.directory, num_gpu_blocks=10**9)
