from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tinyllm.cli.cost import cost
from tinyllm.errors import InputError

app = typer.Typer()
app.command()(cost)

LLAMA_ON_H100 = ["--gpu", "h100", "--model-shape", "llama-3.1-8b"]


def run(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


def milliseconds(output: str) -> dict[str, float]:
    return {term: float(value) for term, value in re.findall(r"^(\w+) +([\d.]+) ms", output, re.MULTILINE)}


def test_cost_prints_terms_that_add_up_and_the_blocks_that_fit() -> None:
    result = run(*LLAMA_ON_H100, "--prefill-tokens", "448", "--decode-seqs", "64", "--context", "1000")
    assert result.exit_code == 0, result.output
    terms = milliseconds(result.output)
    step, gap = terms.pop("step"), terms.pop("gap")
    assert sum(terms.values()) == pytest.approx(step, abs=1e-3) and gap == 0
    assert terms["prefill_attention"] > 0 and terms["decode_attention"] > 0
    assert "num_gpu_blocks            28,027   (448,432 tokens)" in result.output


def test_cost_of_the_yardstick_needs_no_gpu() -> None:
    result = run("--cost-model", "yardstick", "--decode-seqs", "10")
    assert milliseconds(result.output)["step"] == 20.5
    assert "num_gpu_blocks" not in result.output


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--gpu", "h100"],
        ["--model-shape", "llama-3.1-8b"],
        [*LLAMA_ON_H100, "--cost-model", "yardstick"],
        [*LLAMA_ON_H100, "--decode-seqs", "0"],
        [*LLAMA_ON_H100, "--dtype", "fp4"],
        ["--gpu", "h100", "--model-shape", "llama-3.1-70b"],
        ["--cost-model", "no/such.json"],
    ],
)
def test_wrong_options_are_an_input_error(args: list[str], tmp_path: Path) -> None:
    assert isinstance(run(*args).exception, InputError)
