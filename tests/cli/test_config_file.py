"""`--config FILE.toml`: the same options as on the command line, which wins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


@pytest.fixture
def configured(tinyllm_command: Command, trace: list[str], tmp_path: Path) -> Command:
    """`configured(toml, "--seed", "3")`: replay the small trace into `run` under a config file."""

    def run(toml: str, *arguments: object) -> Any:
        (tmp_path / "replay.toml").write_text(toml)
        return tinyllm_command("replay", *trace, "--out", "run", "--config", "replay.toml", *arguments)

    return run


def manifest() -> dict[str, Any]:
    return dict(json.loads(Path("run/manifest.json").read_text()))


def test_options_of_the_file_hold_by_either_spelling(configured: Command) -> None:
    toml = 'cost_model = "yardstick"\nmax-num-seqs = 3\nwatermark = 0.25\nenable_chunked_prefill = false\n'
    toml += 'policy = "vtc"\npolicy-arg = ["input_weight=3", "output_weight=5"]\nrequests = 2\n'
    ended = configured(toml)
    assert ended.status == 0, ended.err
    config = manifest()["config"]
    assert (config["max_num_seqs"], config["watermark"], config["enable_chunked_prefill"]) == (3, 0.25, False)
    assert manifest()["policy"] == {"name": "vtc", "args": {"input_weight": 3, "output_weight": 5}}
    assert ", 2 replayed" in ended.out


def test_the_command_line_wins_wherever_it_stands(configured: Command) -> None:
    toml = 'cost-model = "yardstick"\nmax-num-seqs = 3\npolicy = "srpt"\nenable-chunked-prefill = false\n'
    assert configured(toml, "--max-num-seqs", "5", "--enable-chunked-prefill").status == 0
    config = manifest()["config"]
    assert (config["max_num_seqs"], config["enable_chunked_prefill"]) == (5, True)
    assert manifest()["policy"]["name"] == "srpt"


def test_trace_and_out_may_stand_in_the_file_too(tinyllm_command: Command, trace: list[str]) -> None:
    path, _, columns, _, unit = trace
    toml = (
        f'trace = "{path}"\ncolumns = "{columns}"\nunit = "{unit}"\nout = "there"\ncost-model = "yardstick"\n'
    )
    Path("whole.toml").write_text(toml)
    ended = tinyllm_command("replay", "--config", "whole.toml")
    assert ended.status == 0, ended.err
    assert Path("there/manifest.json").exists()


def test_one_value_stands_for_a_list_of_one(configured: Command) -> None:
    assert configured('cost-model = "yardstick"\npolicy = "vtc"\npolicy-arg = "input_weight=3"').status == 0
    assert manifest()["policy"]["args"] == {"input_weight": 3}


def test_a_flag_is_set_by_true(configured: Command) -> None:
    assert configured('cost-model = "yardstick"').status == 0
    assert configured('cost-model = "yardstick"\nforce = false').status == 2
    assert configured('cost-model = "yardstick"\nforce = true').status == 0


MISTAKES = {
    "unknown key": ("polcy = 'fcfs'", "'polcy' is no option of replay"),
    "no TOML": ("policy: fcfs", "not a TOML file"),
    "a table": ("[policy]\nname = 'vtc'", "is a table"),
    "a section": ("[replay]\nseed = 1", "'replay' is no option"),
    "a config in a config": ("config = 'other.toml'", "'config' is no option"),
    "text for a number": ("requests = 'many'", "requests"),
    "fraction for a count": ("requests = 1.5", "requests"),
    "infinity for a count": ("requests = inf", "requests"),
    "truth for a count": ("requests = true", "requests"),
    "text for a flag": ("force = 'perhaps'", "force"),
    "list for one value": ("policy = ['fcfs', 'vtc']", "is a list"),
    "a key in both spellings": ("max-num-seqs = 1\nmax_num_seqs = 2", "twice"),
    "a value out of range": ("watermark = 2.0", "--watermark 2.0"),
    "NaN": ("rate = nan", "rate"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_file_is_one_line_and_nothing_is_replayed(configured: Command, mistake: str) -> None:
    line, message = MISTAKES[mistake]
    ended = configured(f"{line}\n", "--cost-model", "yardstick")
    assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1), ended.err
    assert message in ended.err
    assert not Path("run").exists()


def test_a_missing_file_is_one_line(tinyllm_command: Command, trace: list[str]) -> None:
    for name in ("nowhere.toml", "."):
        ended = tinyllm_command("replay", *trace, "--out", "run", "--config", name)
        assert (ended.status, ended.err.count("\n")) == (2, 1)
        assert f"--config {name}" in ended.err
