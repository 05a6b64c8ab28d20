"""The time beside the model: shares are those of the log, and what is wrapped lies within it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tinyllm.errors import InputError

pytest.importorskip("torch", reason="the engine of these tests needs the engine extra")

from experiments.bench.overhead import Stopwatch, main, measure


def test_shares_are_parts_of_a_step(tiny_llama: Any, tmp_path: Path) -> None:
    found = measure(tiny_llama.directory, 4, 6, 8, tmp_path)
    # The first token is the prompt's, and the last step ends all requests.
    assert found.steps == 6 and found.step_s > 0
    assert 0 < found.detokenizer < found.after and 0 < found.log < found.after
    assert found.scheduler > 0 and found.sampler > 0 and found.total < 1


def test_the_command_says_whether_the_limit_is_kept(tiny_llama: Any, capsys: Any) -> None:
    sizes = ["--seqs", "4", "--prompt-tokens", "300", "--output-tokens", "3"]
    with pytest.raises(InputError, match="can't be served"):
        main([str(tiny_llama.directory), *sizes])
    # A model of two tiny layers takes no time: beside it nothing is under 5 %.
    assert (
        main([str(tiny_llama.directory), "--seqs", "4", "--prompt-tokens", "9", "--output-tokens", "6"]) == 1
    )
    assert "OVER the limit of 5% of a step" in capsys.readouterr().out


def test_too_short_outputs_are_refused(tiny_llama: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--output-tokens at least 3"):
        measure(tiny_llama.directory, 4, 6, 2, tmp_path)


def test_a_stopwatch_times_calls_and_passes_results_on() -> None:
    class Adder:
        def add(self, a: int, b: int) -> int:
            return a + b

    adder = Adder()
    watch = Stopwatch(adder, "add")
    assert adder.add(2, b=3) == 5 and len(watch.seconds) == 1 and watch.seconds[0] >= 0
