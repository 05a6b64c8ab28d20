"""Whatever the scheduler does with them, requests get the tokens that Transformers gives each of them alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinyllm.engine.llm import LLM
from tinyllm.engine.sampling_params import SamplingParams

PREFIX = [(7 * i) % 250 for i in range(40)]
PROMPTS = [
    [5],
    [5, 6],
    [*PREFIX[:8], 1],
    [*PREFIX[:8], 2, 3, 4],
    PREFIX[:16],
    PREFIX[:16],
    [*PREFIX[:33], 9],
    [(11 * i + 3) % 256 for i in range(25)],
]
MAX_TOKENS = [12, 1, 9, 12, 12, 7, 12, 10]
LONGEST = 34 + 12 - 1


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def params(max_tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **more)


def run(llm: LLM, prompts: list[list[int]], max_tokens: list[int]) -> list[list[int]]:
    outputs = llm.generate(prompts, [params(n) for n in max_tokens])
    assert [output.error for output in outputs] == [None] * len(prompts)
    return [list(output.token_ids) for output in outputs]


@st.composite
def engine_options(draw: st.DrawFn) -> dict[str, Any]:
    block_size = draw(st.sampled_from([1, 3, 4, 16]))
    needed = -(-LONGEST // block_size)
    threshold = draw(st.sampled_from([0, 0, 5]))
    return {
        "block_size": block_size,
        "num_gpu_blocks": needed + draw(st.sampled_from([0, 1, needed, 10 * needed])),
        "max_num_batched_tokens": draw(st.sampled_from([1, 3, 10, 64, 512])),
        "max_num_seqs": draw(st.sampled_from([1, 2, 3, 8])),
        "long_prefill_token_threshold": threshold,
        "enable_prefix_caching": draw(st.booleans()),
        "policy": draw(st.sampled_from(["fcfs", "srpt", "vtc"])),
        "attention": draw(st.sampled_from(["cpu", "sdpa", "reference"])),
    }


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(engine_options(), st.permutations(range(len(PROMPTS))))
def test_chunks_batches_preemptions_and_prefix_hits_change_no_token(
    tiny_llama: Any, options: dict[str, Any], order: list[int]
) -> None:
    llm = LLM(tiny_llama.directory, **options)
    prompts, max_tokens = [PROMPTS[i] for i in order], [MAX_TOKENS[i] for i in order]
    expected = [tiny_llama.greedy(p, 12)[:n] for p, n in zip(prompts, max_tokens, strict=True)]
    assert run(llm, prompts, max_tokens) == expected
    # Once more, now that the prefix cache is warm.
    assert run(llm, prompts, max_tokens) == expected


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt2"])
@pytest.mark.parametrize("tight", [False, True], ids=["roomy pool", "tiny pool"])
def test_every_family_agrees_under_mixed_chunks(
    make_checkpoint: Callable[..., Any], family: str, tight: bool
) -> None:
    checkpoint = make_checkpoint(family)
    llm = LLM(
        checkpoint.directory,
        block_size=4,
        num_gpu_blocks=12 if tight else 200,
        max_num_batched_tokens=24,
        max_num_seqs=6,
    )
    expected = [checkpoint.greedy(p, n) for p, n in zip(PROMPTS, MAX_TOKENS, strict=True)]
    assert run(llm, PROMPTS, MAX_TOKENS) == expected


def test_a_sliding_window_agrees_far_beyond_the_window(make_checkpoint: Callable[..., Any]) -> None:
    checkpoint = make_checkpoint(
        "qwen2", use_sliding_window=True, sliding_window=7, max_window_layers=1, layer_types=None
    )
    llm = LLM(checkpoint.directory, block_size=4, num_gpu_blocks=30, max_num_batched_tokens=16)
    expected = [checkpoint.greedy(p, n) for p, n in zip(PROMPTS, MAX_TOKENS, strict=True)]
    assert run(llm, PROMPTS, MAX_TOKENS) == expected


def test_a_tiny_pool_preempts_and_changes_no_token(tiny_llama: Any) -> None:
    llm = LLM(tiny_llama.directory, block_size=4, num_gpu_blocks=12, enable_prefix_caching=False)
    for number, (prompt, n) in enumerate(zip(PROMPTS, MAX_TOKENS, strict=True)):
        llm.add_request(str(number), prompt, params(n))
    requests = llm.engine.scheduler.unfinished()
    finished = {}
    while llm.has_unfinished:
        finished |= {output.request_id: list(output.token_ids) for output in llm.step() if output.finished}
    assert sum(request.num_preemptions for request in requests) >= 2
    assert [finished[str(i)] for i in range(len(PROMPTS))] == [
        tiny_llama.greedy(p, n) for p, n in zip(PROMPTS, MAX_TOKENS, strict=True)
    ]
    assert llm.engine.scheduler.kv.pool.num_used == 0


def test_seeded_sampling_does_not_depend_on_batch_pool_or_cache(tiny_llama: Any) -> None:
    def sample(**options: Any) -> list[tuple[int, ...]]:
        llm = LLM(tiny_llama.directory, block_size=4, **options)
        each = [
            SamplingParams(max_tokens=n, seed=i, top_k=50, top_p=0.9, repetition_penalty=1.1, ignore_eos=True)
            for i, n in enumerate(MAX_TOKENS)
        ]
        return [tuple(output.token_ids) for output in llm.generate(PROMPTS, each)]

    roomy = sample(num_gpu_blocks=400, enable_prefix_caching=False)
    assert sample(num_gpu_blocks=12) == roomy
    assert sample(num_gpu_blocks=12, enable_prefix_caching=False, max_num_batched_tokens=5) == roomy
    assert sample(num_gpu_blocks=400, max_num_seqs=1) == roomy
