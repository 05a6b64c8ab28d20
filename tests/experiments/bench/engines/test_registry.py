from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.bench.engines import ENGINES, FAMILIES, engine_class, family_engines
from experiments.bench.engines.options import EngineOptions
from tinyllm.errors import InputError


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_is_known_where_nothing_of_what_it_needs_is_installed(name: str) -> None:
    assert engine_class(name).modules


def test_a_family_is_all_modes_of_an_engine_and_a_single_engine_is_a_family_of_one() -> None:
    assert family_engines(["tinyllm", "vllm", "transformers-static", "mine:Engine"]) == {
        "tinyllm": ("tinyllm",),
        "vllm": ("vllm-eager", "vllm-compiled"),
        "transformers-static": ("transformers-static",),
        "mine:Engine": ("mine:Engine",),
    }
    # What is measured beside an engine, to explain it, is no mode of which the better one counts.
    modes = {name for names in FAMILIES.values() for name in names}
    assert set(ENGINES) - modes == {"tinyllm-float32"} and modes < set(ENGINES)


@pytest.mark.parametrize(
    ("backends", "says"),
    [
        (["sglang"], "--backend sglang: unknown; choose tinyllm, transformers, vllm, transformers-static"),
        (["vllm", "vllm-eager"], "--backend vllm-eager: vllm-eager is in vllm already; name it once"),
        (["tinyllm", "tinyllm"], "--backend tinyllm: tinyllm is in tinyllm already"),
    ],
)
def test_a_wrong_backend_is_refused(backends: list[str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        family_engines(backends)


@given(
    st.integers(1, 500),
    st.integers(1, 64),
    st.sampled_from([32, 128, 256]),
    st.lists(st.integers(1, 400), min_size=1, max_size=8),
)
def test_larger_blocks_hold_whatever_sequences_the_pool_holds(
    num_blocks: int, block_size: int, page_size: int, lengths: list[int]
) -> None:
    options = EngineOptions(num_gpu_blocks=num_blocks, block_size=block_size)
    pages = options.num_pages(page_size, len(lengths))
    assert pages is not None
    if sum(lengths) <= num_blocks * block_size:
        assert sum(-(-length // page_size) for length in lengths) <= pages
    assert pages * page_size < num_blocks * block_size + (len(lengths) + 1) * page_size


def test_options_survive_the_way_to_the_child() -> None:
    options = EngineOptions(num_gpu_blocks=5, attention="eager")
    assert EngineOptions.from_json(options.to_json()) == options


@pytest.mark.parametrize(
    ("text", "says"), [("{", "--options: not JSON"), ("[]", r"--options \[\]: give an object")]
)
def test_options_that_are_no_object_are_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        EngineOptions.from_json(text)
