"""The command as a whole: help, lazy imports, exit codes, a user's own policy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.text import Text

import tinyllm.cli
from tinyllm.engine.record.reader import read_run

Command = Callable[..., Any]

HEAVY = ("numpy", "pandas", "pyarrow", "torch", "simpy", "transformers", "matplotlib")

MY_POLICY = '''
from tinyllm.policy.base import SchedulingPolicy


class Mine(SchedulingPolicy):
    """Short prompts first, unless a request waits for too long."""

    stable_waiting = False

    def __init__(self, patience: float = 2.0) -> None:
        self.patience = int(patience * 1e9)

    def key(self, view, now):
        waited = now - view.arrival
        return (0 if waited > self.patience else 1, view.num_prompt_tokens)
'''


def commands() -> dict[str, Any]:
    """Every command by its words, `trace info` and the like included."""
    found: dict[str, Any] = {}

    def walk(group: Any, words: tuple[str, ...]) -> None:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                walk(command, (*words, name))
            else:
                found[" ".join((*words, name))] = command

    walk(typer.main.get_command(tinyllm.cli.app), ())
    return found


def test_the_commands_of_the_first_slice_are_there() -> None:
    assert {"replay", "report", "cost", "doctor", "trace info", "trace generate"} <= commands().keys()


@pytest.mark.parametrize("name", commands())
def test_the_help_of_every_command_has_an_example_of_itself(tinyllm_command: Command, name: str) -> None:
    ended = tinyllm_command(*name.split(), "--help")
    assert (ended.status, ended.err) == (0, "")
    assert re.search(rf"Example:\s+tinyllm {name} ", f"{' '.join(ended.out.split())} ")


@pytest.mark.parametrize("name", commands())
def test_no_help_loses_words_that_look_like_markup(name: str) -> None:
    for parameter in commands()[name].params:
        text = getattr(parameter, "help", None) or ""
        assert Text.from_markup(text).plain == text, parameter.name


@pytest.mark.parametrize("arguments", [[], ["trace"]])
def test_without_a_command_the_help_is_shown_and_the_exit_code_says_that_nothing_was_done(
    tinyllm_command: Command, arguments: list[str]
) -> None:
    ended = tinyllm_command(*arguments)
    assert (ended.status, ended.err) == (2, "")
    assert "Commands" in ended.out


def test_a_misspelt_command_is_one_line(tinyllm_command: Command) -> None:
    ended = tinyllm_command("replya")
    assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_importing_the_command_line_imports_nothing_heavy() -> None:
    code = f"import sys, tinyllm.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    ended = run_python(code)
    assert ended.stdout.strip() == "[]", ended.stderr


def test_asking_for_help_imports_nothing_heavy() -> None:
    code = f"""
import sys, tinyllm.cli
sys.argv = ["tinyllm", "replay", "--help"]
try:
    tinyllm.cli.main()
finally:
    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    assert run_python(code).stderr.strip() == "[]"


def test_a_reader_that_leaves_early_sees_no_traceback(replay: Command) -> None:
    assert replay().status == 0
    command = f"{sys.executable} -c 'import tinyllm.cli; tinyllm.cli.main()' trace --help | head -1"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in ended.stderr


def test_a_replay_says_what_it_did_and_where_the_log_is(replay: Command) -> None:
    ended = replay()
    assert (ended.status, ended.err) == (0, "")
    assert "Trace: 4 rows, 4 replayed. Ended: 4 length." in ended.out
    assert "Log: run " in ended.out
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert manifest["status"] == "complete"
    assert manifest["policy"] == {"name": "fcfs", "args": {}}


def test_a_policy_of_twenty_lines_in_a_file_of_ones_own_runs_and_is_compared(
    tinyllm_command: Command, tmp_path: Path
) -> None:
    assert len(MY_POLICY.strip().splitlines()) <= 20
    (tmp_path / "mypolicy.py").write_text(MY_POLICY)
    lengths = ["--prompt-lengths", "lognormal:median=300,sigma=1", "--output-lengths", "constant:tokens=20"]
    arguments = ["--requests", 200, "--rate", 40, *lengths, "--seed", 3, "--out", "trace.parquet"]
    assert tinyllm_command("trace", "generate", "--preset", "poisson", *arguments).status == 0
    for policy, extra in (("fcfs", ()), ("mypolicy:Mine", ("--policy-arg", "patience=60"))):
        out = policy.split(":")[0]
        device = ["--cost-model", "yardstick", "--max-num-seqs", 8]
        ended = tinyllm_command("replay", "trace.parquet", "--policy", policy, *extra, *device, "--out", out)
        assert ended.status == 0, ended.err
    waits = {}
    for name in ("fcfs", "mypolicy"):
        requests = read_run(name).requests
        assert requests["finish_reason"].eq("length").all()
        waits[name] = (requests["first_token"] - requests["arrival"]).mean()
    assert waits["mypolicy"] < 0.9 * waits["fcfs"]
    ended = tinyllm_command("report", "fcfs", "mypolicy", "--out", "report.html")
    assert ended.status == 0 and Path("report.html").stat().st_size > 1000


def test_a_broken_policy_file_is_one_line(tinyllm_command: Command, trace: list[str], tmp_path: Path) -> None:
    (tmp_path / "brokenpolicy.py").write_text("class Mine(:\n")
    arguments = ["--cost-model", "yardstick", "--out", "run", "--policy", "brokenpolicy:Mine"]
    ended = tinyllm_command("replay", *trace, *arguments)
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert "brokenpolicy" in ended.err
