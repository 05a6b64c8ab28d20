from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sim.cost import (
    COST_MODELS,
    YARDSTICK,
    LinearCostModel,
    RooflineCostModel,
    StepSums,
    from_dict,
    load_cost_model,
)
from sim.hardware import GPUS
from sim.shapes import SHAPES
from tinyllm.errors import InputError

LINEAR = {"kind": "linear", "base_s": 0.02, "per_token_s": 5e-5, "per_seq_s": 0.0, "per_context_token_s": 0}
ROOFLINE = {"kind": "roofline", "gpu": "h100", "model_shape": "llama-3.1-8b"}
DOCS = (Path(__file__).parents[2] / "docs/cost-models.md").read_text(encoding="utf-8")
EXAMPLE_IMPORTS = """
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from sim.cost.base import StepShape, round_ns
from sim.spec import build
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cost.json"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_yardstick_is_known_by_name_and_equals_its_file(tmp_path: Path) -> None:
    assert load_cost_model("yardstick") is YARDSTICK
    assert load_cost_model(write(tmp_path, json.dumps(LINEAR))) == YARDSTICK


def test_a_roofline_file_names_the_gpu_and_the_model_or_spells_them_out(tmp_path: Path) -> None:
    expected = RooflineCostModel(GPUS["h100"], SHAPES["llama-3.1-8b"])
    assert load_cost_model(write(tmp_path, json.dumps(ROOFLINE))) == expected
    assert load_cost_model(write(tmp_path, json.dumps(expected.describe()))) == expected


def test_a_changed_constant_is_another_model(tmp_path: Path) -> None:
    record = RooflineCostModel(GPUS["h100"], SHAPES["llama-3.1-8b"]).describe()
    record["gpu"]["bandwidth"] = 3.9e12
    assert from_dict(record) != from_dict(ROOFLINE)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, ["kind is None", "linear, roofline"]),
        ({"kind": "quadratic"}, ["quadratic", "linear, roofline"]),
        ({"kind": ["linear"]}, ["linear, roofline"]),
        ({k: v for k, v in LINEAR.items() if k != "per_seq_s"}, ["per_seq_s", "missing"]),
        ({**LINEAR, "per_toke_s": 1}, ["per_toke_s", "unknown key"]),
        ({**LINEAR, "_scaled": 1}, ["_scaled", "unknown key"]),
        ({**LINEAR, "base_s": -0.1}, ["base_s", "-0.1"]),
        ({**LINEAR, "base_s": float("nan")}, ["base_s", "nan"]),
        ({**LINEAR, "base_s": 10**400}, ["base_s", "finite"]),
        ({**LINEAR, "base_s": "0.02"}, ["base_s", "'0.02'"]),
        ({**LINEAR, "base_s": True}, ["base_s", "True"]),
        ({**LINEAR, "base_s": None}, ["base_s", "None"]),
        ({"kind": "roofline", "gpu": "h100"}, ["model_shape", "missing"]),
        ({**ROOFLINE, "gpu": "h1000"}, ["h1000", "h100, h200, a100"]),
        ({**ROOFLINE, "gpu": 100}, ["gpu", "100"]),
        ({**ROOFLINE, "gpu": {"name": "mine"}}, ["gpu", "flops", "missing"]),
        ({**ROOFLINE, "model_shape": "llama-9"}, ["llama-9", "llama-3.1-8b"]),
        ({**ROOFLINE, "tp": 1.5}, ["tp", "whole number"]),
        ({**ROOFLINE, "tp": 5}, ["do not divide"]),
        ({**ROOFLINE, "dtype": "fp8"}, ["fp8", "bfloat16"]),
        ({**ROOFLINE, "_kernels": {}}, ["_kernels", "unknown key"]),
    ],
)
def test_a_wrong_file_is_refused_naming_file_and_key(
    tmp_path: Path, spec: dict[str, Any], words: list[str]
) -> None:
    path = write(tmp_path, json.dumps(spec))
    with pytest.raises(InputError) as error:
        load_cost_model(path)
    message = str(error.value)
    assert str(path) in message and "\n" not in message
    for word in words:
        assert word in message


def test_a_gpu_that_divides_by_zero_is_refused() -> None:
    record = RooflineCostModel(GPUS["h100"], SHAPES["llama-3.1-8b"]).describe()
    record["gpu"]["bandwidth"] = 0
    with pytest.raises(InputError, match=r"mine\.json: gpu: bandwidth is 0\.0"):
        from_dict(record, "mine.json")


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", '"yardstick"', '{"kind": "linear",}'])
def test_a_file_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=r"cost\.json"):
        load_cost_model(path)


def test_a_missing_file_a_directory_and_a_binary_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="yardstick"):
        load_cost_model(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot be read"):
        load_cost_model(tmp_path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        load_cost_model(tmp_path / "binary.json")


def test_optional_keys_take_their_defaults_from_the_class() -> None:
    assert from_dict(LINEAR) == LinearCostModel(0.02, 5e-5, 0, 0, gap_s=0, gap_per_seq_s=0)
    assert from_dict({**LINEAR, "gap_s": 0.001}) != from_dict(LINEAR)


def test_the_json_of_the_docs_loads() -> None:
    examples = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", DOCS, re.DOTALL)]
    assert [from_dict(example) for example in examples] == [YARDSTICK, from_dict(ROOFLINE)]


def test_the_cost_model_of_the_docs_needs_no_more_than_a_line_in_the_registry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(EXAMPLE_IMPORTS + example, namespace)
    monkeypatch.setitem(COST_MODELS, "constant", namespace["ConstantCostModel"])
    model = from_dict({"kind": "constant", "step_s": 0.25})
    assert model.step_ns(StepSums.from_rows(decode=[1])) == 250_000_000
    assert from_dict(model.describe()) == model
    with pytest.raises(InputError, match="step_s"):
        from_dict({"kind": "constant"})
