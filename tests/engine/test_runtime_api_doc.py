"""The examples of docs/runtime-api.md run as they stand, one after the other, on a tiny checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

DOC = Path(__file__).parents[2] / "docs/runtime-api.md"


def test_the_examples_of_the_docs_run(
    tiny_llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/smollm2-135m").symlink_to(tiny_llama.directory)
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", DOC.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(examples) == 4
    names: dict[str, Any] = {}
    printed = []
    for example in examples:
        exec(example, names)
        printed.append(capsys.readouterr().out.splitlines())
    whole, stream, steps, _ = printed
    assert whole[0].startswith("The sea is → ") and whole[-1].endswith(("length", "stop"))
    # 32 tokens of either prompt, unless one ends by EOS.
    assert sum(line.endswith("True") for line in stream) == 2
    assert sorted(line.split()[:2] for line in steps) in (
        [["a", "length"], ["b", "abort"]],
        [["a", "stop"], ["b", "abort"]],
    )
    assert type(names["engine"].scheduler.policy).__name__ == "SRPT"
