"""What needs no vLLM: settings, options and the versions that are supported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinyllm.bridge import versions
from tinyllm.bridge.environment import PYTHON_VARIABLE, vllm_python
from tinyllm.bridge.options import scheduler_options
from tinyllm.bridge.settings import BridgeSettings
from tinyllm.errors import InputError
from tinyllm.policy import SchedulerConfig


def test_the_configuration_wins_over_the_environment() -> None:
    environment = {
        "TINYLLM_POLICY": "vtc",
        "TINYLLM_POLICY_ARGS": '{"output_weight": 4}',
        "TINYLLM_LOG": "runs/x",
    }
    assert BridgeSettings.read({}, environment) == BridgeSettings("vtc", {"output_weight": 4}, Path("runs/x"))
    given = {"tinyllm": {"policy": "srpt", "policy_args": {}}, "other": 1}
    assert BridgeSettings.read(given, environment) == BridgeSettings("srpt", {}, Path("runs/x"))


@pytest.mark.parametrize("text", ["output_weight=4", "[1]", "{"])
def test_policy_arguments_that_are_no_json_object_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"TINYLLM_POLICY_ARGS .*: give a JSON object"):
        BridgeSettings.read(None, {"TINYLLM_POLICY_ARGS": text})


def test_vllm_keeps_as_many_blocks_free_although_it_counts_its_null_block() -> None:
    for num_blocks in range(1, 200):
        for watermark in (0.0, 0.01, 0.1, 0.3, 0.5):
            config = SchedulerConfig(num_gpu_blocks=num_blocks, watermark=watermark)
            theirs = scheduler_options(config)["watermark"]
            assert int(theirs * (num_blocks + 1)) == int(watermark * num_blocks)


def test_another_version_of_vllm_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions.metadata, "version", lambda name: "0.31.2+cpu")
    with pytest.raises(InputError, match=r"vLLM 0\.31\.2 is not supported, the bridge knows 0\.32\.0"):
        versions.check_version()


def test_a_python_that_is_not_there_is_named_with_the_ways_to_get_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PYTHON_VARIABLE, "/nowhere/python")
    with pytest.raises(InputError, match="--mode vllm: no /nowhere/python; run `make peer-vllm`"):
        vllm_python("--mode vllm")
