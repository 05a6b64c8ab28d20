"""vLLM in the environment that has it. Compiling takes minutes: the eager one stands for both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the checkpoint of this test is made with torch")

from experiments.bench.engines.options import EngineOptions
from experiments.bench.engines.process import EngineProcess
from experiments.bench.engines.vllm_engine import VLLMCompiled, VLLMEager
from experiments.bench.jobs import BenchRequest, Job
from tinyllm.bridge.environment import vllm_python
from tinyllm.errors import InputError

OPTIONS = {"num_gpu_blocks": 64, "max_num_seqs": 4, "max_model_len": 100}


@pytest.fixture
def wide(make_checkpoint: Callable[..., Any]) -> Any:
    """A checkpoint with heads of 32 channels, the narrowest for which vLLM has attention on a CPU."""
    try:
        vllm_python("this test")
    except InputError as error:
        pytest.skip(str(error))
    return make_checkpoint(hidden_size=128)


@pytest.mark.slow
def test_vllm_serves_with_the_oracles_tokens(
    wide: Any, make_requests: Callable[..., list[BenchRequest]]
) -> None:
    requests = make_requests([9, 5, 7])
    expected = [wide.greedy(request.prompt_token_ids, request.max_tokens) for request in requests]
    eos = expected[0][3]
    cut = [tokens[: tokens.index(eos) + 1] if eos in tokens else tokens for tokens in expected]
    wide.edit("generation_config.json", eos_token_id=eos)
    with EngineProcess("vllm-eager", wide.directory, OPTIONS) as engine:
        together = engine.run(Job(requests)).served
        assert engine.info["settings"]["compilation"] == "NONE"
        later = engine.run(Job(make_requests([9, 5, 7], [0.2, 0.0, 0.1]), ignore_eos=False))
    assert [one.token_ids for one in together] == expected
    assert [one.token_ids for one in later.served] == cut
    assert [one.finish_reason for one in later.served] == [
        "stop" if tokens[-1] == eos else "length" for tokens in cut
    ]
    for one, due in zip(later.served, [0.2, 0.0, 0.1], strict=True):
        assert one.first_scheduled_s is not None
        assert due <= one.submitted_s <= one.first_scheduled_s < one.token_times_s[0]
        assert len(one.token_times_s) == len(one.token_ids)
    assert later.memory.kv_pool and later.memory.rss_after_imports <= later.memory.peak_rss


def test_the_modes_differ_in_what_is_compiled_alone() -> None:
    assert (VLLMEager.enforce_eager, VLLMCompiled.enforce_eager) == (True, False)


def test_a_child_gets_the_openmp_of_its_environment_if_it_has_one(tmp_path: Path) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.touch()
    options = EngineOptions(vllm_python=str(python), kvcache_space=3)
    assert VLLMEager.python(options) == python
    variables = VLLMEager.environment(options)
    assert variables["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert "LD_PRELOAD" not in variables
    openmp = tmp_path / "lib/libiomp5.so"
    openmp.parent.mkdir()
    openmp.touch()
    assert VLLMEager.environment(options)["LD_PRELOAD"] == str(openmp)
