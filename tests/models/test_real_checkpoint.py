"""SmolLM2-135M as `tinyllm get-model` lays it out: the model answers, and both engines agree on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tinyllm.models.layers import Linear
from tinyllm.models.loader import load_model
from tinyllm.models.matmul import rows_of

DIRECTORY = Path(os.environ.get("TINYLLM_MODEL_DIR") or Path(__file__).parents[2] / "models/smollm2-135m")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not DIRECTORY.is_dir(),
        reason=f"no checkpoint at {DIRECTORY}: `tinyllm get-model smollm2-135m models/smollm2-135m` brings it",
    ),
]


@pytest.fixture(scope="module")
def transformers_model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(DIRECTORY, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompt() -> torch.Tensor:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(DIRECTORY)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    return ids["input_ids"][0]


def test_the_checkpoint_knows_the_capital_of_france(transformers_model: Any, prompt: torch.Tensor) -> None:
    from transformers import AutoTokenizer

    with torch.no_grad():
        output = transformers_model.generate(prompt[None], max_new_tokens=12, do_sample=False)[0]
    assert "Paris" in AutoTokenizer.from_pretrained(DIRECTORY).decode(output[len(prompt) :])


def test_its_logits_are_those_of_transformers(
    transformers_model: Any, prompt: torch.Tensor, logits_of: Callable[..., torch.Tensor]
) -> None:
    with torch.no_grad():
        expected = transformers_model(prompt[None]).logits[0]
    logits = logits_of(load_model(DIRECTORY), prompt)
    torch.testing.assert_close(logits, expected, atol=1e-3, rtol=0)
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))


def test_preemptions_in_a_tiny_pool_and_chunks_change_no_token_of_it() -> None:
    from tinyllm.engine.llm import LLM
    from tinyllm.engine.sampling_params import SamplingParams

    prompts = [[(7 * n * n + 31 * i) % 40_000 + 100 for i in range(30 + 6 * n)] for n in range(5)]
    params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)

    def generate(**options: Any) -> tuple[list[list[int]], int]:
        llm = LLM(DIRECTORY, block_size=8, enable_prefix_caching=False, **options)
        for number, prompt in enumerate(prompts):
            llm.add_request(str(number), prompt, params)
        requests = llm.engine.scheduler.unfinished()
        ended = {}
        while llm.has_unfinished:
            ended |= {output.request_id: list(output.token_ids) for output in llm.step() if output.finished}
        return [ended[str(n)] for n in range(5)], sum(r.num_preemptions for r in requests)

    roomy, none = generate(num_gpu_blocks=100)
    tiny, preemptions = generate(num_gpu_blocks=16, max_num_batched_tokens=24)
    assert none == 0 and preemptions >= 3
    assert tiny == roomy


def test_it_is_kept_in_fewer_bytes_and_no_bit_of_it_is_lost() -> None:
    compact, plain = (load_model(DIRECTORY, is_compact=is_compact) for is_compact in (True, False))
    sizes = [
        sum(each.numel() * each.element_size() for each in model.parameters()) for model in (compact, plain)
    ]
    assert sizes[0] < sizes[1] / 3
    for name, kept in compact.named_modules():
        if isinstance(kept, Linear):
            other = plain.get_submodule(name)
            width = other.weight.shape[1]
            rows = torch.arange(kept.out_features)
            assert torch.equal(rows_of(kept.weight, rows, width), rows_of(other.weight, rows, width))
