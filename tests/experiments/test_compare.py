"""Token agreement: what counts as a difference, which prompts are run, and what a disagreement looks like."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import experiments.backends as backends
from experiments.backends.base import Backend, GreedyOutput
from experiments.compare import Difference, compare, cut_prompts, first_difference, read_prompts
from experiments.corpus import corpus_text
from tinyllm.cli import app
from tinyllm.errors import IncompleteRunError, InputError

MODEL = Path(os.environ.get("TINYLLM_MODEL_DIR") or Path(__file__).parents[2] / "models/smollm2-135m")
SMALL: dict[str, Any] = {"num_prompts": 6, "max_tokens": 8, "num_gpu_blocks": 200, "block_size": 4}


class Contrary(Backend):
    """A reference that says token 7, sure of itself on even calls and undecided on odd ones."""

    def __init__(self, model: Path, *, device: str, dtype: str) -> None:
        self.calls = 0

    def generate(self, prompt: Sequence[int], max_tokens: int, eos_token_ids: Sequence[int]) -> GreedyOutput:
        self.calls += 1
        return GreedyOutput([7] * max_tokens, [1.0 if self.calls % 2 else 1e-4] * max_tokens)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def contrary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.compare.backend_class", lambda name: Contrary)


def test_a_random_model_agrees_with_transformers_with_a_tiny_pool_and_eos(tiny_llama: Any) -> None:
    agreement = compare(tiny_llama.directory, "transformers", **SMALL, max_num_batched_tokens=16)
    assert agreement.num_agreeing == len(agreement.prompt_lengths) == 6
    assert agreement.differences == [] and agreement.num_tokens >= 40
    assert agreement.prompt_lengths[0] == 16 and agreement.prompt_lengths[-1] == 248


def test_only_a_difference_above_the_margin_counts(tiny_llama: Any, contrary: None) -> None:
    agreement = compare(tiny_llama.directory, "contrary", **SMALL)
    assert [d.prompt for d in agreement.differences] == list(range(6))
    assert [d.counts for d in agreement.differences] == [True, False] * 3
    assert agreement.num_agreeing == 3


def test_the_command_lists_differences_and_ends_with_1(tiny_llama: Any, contrary: None) -> None:
    arguments = [
        str(tiny_llama.directory),
        "--num-prompts",
        "2",
        "--max-tokens",
        "4",
        "--num-gpu-blocks",
        "99",
    ]
    result = CliRunner().invoke(app, ["compare", *arguments])
    assert isinstance(result.exception, IncompleteRunError)
    assert result.exception.exit_code == 1
    assert str(result.exception) == (
        "1/2 prompts agree with transformers (16 to 252 prompt tokens, 8 output tokens, 1 ties)"
    )
    first, second = result.stdout.splitlines()
    assert "prompt 0 (16 tokens): output token 0 is" in first and first.endswith("margin 1: counts")
    assert "transformers has 7, margin 0.0001" in second and second.endswith("a tie up to rounding")


def test_the_command_ends_with_0_where_all_agree(tiny_llama: Any) -> None:
    arguments = [
        str(tiny_llama.directory),
        "--num-prompts",
        "2",
        "--max-tokens",
        "4",
        "--num-gpu-blocks",
        "99",
    ]
    result = CliRunner().invoke(app, ["compare", *arguments])
    assert result.exit_code == 0
    assert result.stdout.startswith("2/2 prompts agree with transformers")


# ── differences ──────────────────────────────────────────────────────────────────────────────────────


def test_the_first_difference_is_found_also_past_an_end() -> None:
    reference = GreedyOutput([1, 2, 3], [0.5, 0.6, 0.7])
    assert first_difference(0, [1, 2, 3], reference) is None
    assert first_difference(4, [1, 9, 9], reference) == Difference(4, 1, 9, 2, 0.6)
    assert first_difference(0, [1, 2], reference) == Difference(0, 2, None, 3, 0.7)
    longer = first_difference(0, [1, 2, 3, 4], reference)
    assert longer == Difference(0, 3, 4, None, float("inf")) and longer is not None and longer.counts


@pytest.mark.parametrize(
    ("margin", "counts"), [(0.0, False), (1e-3, False), (1.1e-3, True), (float("nan"), True)]
)
def test_the_margin_decides(margin: float, counts: bool) -> None:
    assert Difference(0, 0, 1, 2, margin).counts == counts


# ── prompts ──────────────────────────────────────────────────────────────────────────────────────────


def test_built_in_prompts_spread_to_the_longest_and_differ_from_their_start_on() -> None:
    corpus = list(corpus_text().encode())
    prompts = cut_prompts(corpus, 32, 2000)
    lengths = [len(prompt) for prompt in prompts]
    assert (lengths[0], lengths[-1]) == (16, 2000) and lengths == sorted(lengths)
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 32
    assert cut_prompts(corpus, 32, 2000) == prompts
    assert [len(prompt) for prompt in cut_prompts(corpus, 3, 10)] == [10, 10, 10]
    assert [len(prompt) for prompt in cut_prompts(corpus, 1, 10)] == [10]


def test_prompts_of_a_file_are_its_lines_or_the_field_of_json_lines(tmp_path: Path) -> None:
    plain, lines = tmp_path / "p.txt", tmp_path / "p.jsonl"
    plain.write_text("one\n\n  two\n")
    lines.write_text(json.dumps({"prompt": "a\nb"}) + "\n\n" + json.dumps({"prompt": "c", "x": 1}) + "\n")
    assert read_prompts(plain) == ["one", "  two"]
    assert read_prompts(lines) == ["a\nb", "c"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.txt", b"\n \n", "holds no prompt"),
        ("p.txt", b"\xff\xfe", "can't be read as text"),
        ("p.jsonl", b'{"prompt": "a"}\n{"text": "b"}\n', "line 2"),
        ("p.jsonl", b"[1]\n", "line 1"),
        ("p.jsonl", b'{"prompt": 3}\n', "line 1"),
    ],
)
def test_a_wrong_prompt_file_is_named_with_its_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_prompts(tmp_path / name)
    assert name in str(caught.value)


def test_a_prompt_that_leaves_no_room_is_refused_before_the_reference_is_loaded(
    tiny_llama: Any, tmp_path: Path
) -> None:
    path = tmp_path / "p.txt"
    path.write_text("fine\n" + "x" * 250 + "\n")
    with pytest.raises(InputError, match="prompt 2 has 250 tokens; give 1 to 248"):
        compare(tiny_llama.directory, "transformers", prompts_file=path, **SMALL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_prompts": 0}, "num-prompts 0"),
        ({"max_tokens": 0}, "max-tokens 0"),
        ({}, "backend nonsense: unknown"),
    ],
)
def test_wrong_options_are_refused(tiny_llama: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compare(tiny_llama.directory, "nonsense" if not options else "transformers", **(SMALL | options))


def test_a_backend_whose_package_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends.BACKENDS, "other", "no_such_package.engine:Engine")
    with pytest.raises(InputError, match="no_such_package is not installed"):
        backends.backend_class("other")


@pytest.mark.slow
@pytest.mark.skipif(
    not MODEL.is_dir(),
    reason=f"no checkpoint at {MODEL}: `tinyllm get-model smollm2-135m models/smollm2-135m` brings it",
)
@pytest.mark.timeout(3600)
def test_a_real_checkpoint_agrees_on_32_prompts_of_up_to_2000_tokens() -> None:
    agreement = compare(MODEL, "transformers", max_tokens=16)
    print(agreement.differences)
    assert max(agreement.prompt_lengths) == 2000
    assert agreement.num_agreeing == len(agreement.prompt_lengths) == 32
