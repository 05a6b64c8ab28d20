"""`tinyllm generate` from the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from tinyllm.cli import app
from tinyllm.errors import IncompleteRunError, InputError


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def generate(directory: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["generate", str(directory), "--num-gpu-blocks", "64", *arguments])


def test_one_prompt_is_streamed_and_its_speed_goes_to_standard_error(reciting: Callable[..., Path]) -> None:
    result = generate(reciting("A 世ab".encode()), "--prompt", "A")
    assert (result.exit_code, result.stdout) == (0, " 世ab\n")
    assert result.stderr.startswith("[1 prompt tokens, 7 output tokens in ")
    assert result.stderr.endswith("tokens/s]\n")


def test_a_message_is_answered_by_the_template(reciting: Callable[..., Path]) -> None:
    # The template ends with a line feed, from which the text goes on.
    result = generate(reciting(b"\nBye"), "--chat", "Hello")
    assert (result.exit_code, result.stdout) == (0, "Bye\n")


def test_several_prompts_come_with_their_texts_and_a_bad_one_fails_alone(
    reciting: Callable[..., Path],
) -> None:
    result = generate(reciting(b"ABC"), "--prompt", "A", "--prompt", "", "--prompt", "B")
    assert result.stdout == "── A\nBC\n\n── \nerror: the prompt is empty\n\n── B\nC\n\n"
    assert isinstance(result.exception, IncompleteRunError)
    assert "1 of 3 prompts failed" in str(result.exception)


def test_sampling_options_reach_the_engine(reciting: Callable[..., Path]) -> None:
    directory = reciting(b"ABCDEF")
    assert generate(directory, "--prompt", "A", "--stop", "DE").stdout == "BC\n"
    assert generate(directory, "--prompt", "A", "--max-tokens", "2").stdout == "BC\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--prompt TEXT or --chat TEXT"),
        (["--prompt", "a", "--chat", "b"], "--prompt TEXT or --chat TEXT"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "x" * 256], "max_model_len 256"),
        (["--prompt", "a", "--temperature", "nan"], "temperature"),
        (["--prompt", "a", "--max-tokens", "0"], "max_tokens"),
        (["--prompt", "a", "--policy", "nonsense"], "policy nonsense"),
        (["--prompt", "a", "--policy-arg", "x"], "policy-arg x"),
        (["--prompt", "a", "--block-size", "0"], "block-size 0"),
    ],
)
def test_a_wrong_input_is_one_line(tiny_llama: Any, arguments: list[str], message: str) -> None:
    result = generate(tiny_llama.directory, *arguments)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception) and "\n" not in str(result.exception)
