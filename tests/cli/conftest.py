from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tinyllm.cli

TRACE = """arrival_s,prompt_tokens,output_tokens
0.0,30,8
0.01,200,40
0.02,12,3
0.03,64,16
"""


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


@pytest.fixture
def tinyllm_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Callable[..., Ended]]:
    """`tinyllm_command("trace", "info", path)`: run the command line in an empty folder as a shell would."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["tinyllm", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            tinyllm.cli.main()
        return Ended(int(ended.value.code or 0), *capsys.readouterr())

    yield run


@pytest.fixture
def trace(tmp_path: Path) -> list[str]:
    """Arguments that name a small trace of four rows."""
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    columns = "arrival=arrival_s,prompt_tokens=prompt_tokens,output_tokens=output_tokens"
    return [str(path), "--columns", columns, "--unit", "s"]


@pytest.fixture
def replay(tinyllm_command: Callable[..., Ended], trace: list[str]) -> Callable[..., Ended]:
    """`replay("--policy", "srpt")`: of the small trace, under the yardstick, into `run`."""

    def run(*arguments: object, out: str = "run") -> Ended:
        return tinyllm_command("replay", *trace, "--cost-model", "yardstick", "--out", out, *arguments)

    return run
