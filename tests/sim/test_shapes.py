from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.shapes import SHAPES, ModelShape, dtype_bytes, shape_by_name, shape_from_config
from tinyllm.errors import InputError

LLAMA_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
QWEN2_CONFIG: dict[str, Any] = {
    "model_type": "qwen2",
    "num_hidden_layers": 24,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
}
QWEN3_CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
GPT2_CONFIG: dict[str, Any] = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "n_inner": None,
    "vocab_size": 50257,
    "n_positions": 1024,
}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-7b", 7_615_616_512),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
    ],
)
def test_a_known_shape_has_the_published_number_of_parameters(name: str, parameters: int) -> None:
    assert SHAPES[name].num_parameters == parameters
    assert SHAPES[name].weight_bytes("bfloat16") == 2 * parameters
    assert SHAPES[name].weight_bytes("float32") == 4 * parameters


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA_CONFIG, 134_515_008),
        (QWEN2_CONFIG, 494_032_768),
        (QWEN3_CONFIG, 596_049_920),
        (GPT2_CONFIG, 124_439_808),
    ],
)
def test_a_config_gives_the_published_number_of_parameters(config: dict[str, Any], parameters: int) -> None:
    assert shape_from_config(config, "config.json").num_parameters == parameters


def test_llama_8b_keeps_128_kib_of_kv_a_token_shared_among_the_gpus() -> None:
    shape = SHAPES["llama-3.1-8b"]
    assert [shape.kv_bytes_per_token("bfloat16", tp) for tp in (1, 2, 8, 16)] == [
        131072,
        65536,
        16384,
        16384,
    ]
    assert shape.kv_bytes_per_token("float32") == 2 * 131072


def test_a_config_is_read_from_its_file_or_its_directory_and_named_for_it(tmp_path: Path) -> None:
    directory = tmp_path / "SmolLM2-135M-Instruct"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    shape = shape_by_name(directory)
    assert shape == shape_by_name(directory / "config.json")
    assert shape.name == "SmolLM2-135M-Instruct"
    assert {**vars(shape), "name": ""} == {**vars(SHAPES["smollm2-135m"]), "name": ""}


def test_names_are_known_in_any_case() -> None:
    assert shape_by_name("Llama-3.1-8B") is SHAPES["llama-3.1-8b"]


def test_a_llama_config_without_kv_heads_has_one_for_each_head() -> None:
    config = {key: value for key, value in LLAMA_CONFIG.items() if key != "num_key_value_heads"}
    assert shape_from_config(config, "config.json").num_kv_heads == 9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mamba"}, ["mamba", "llama, qwen2, qwen3, gpt2"]),
        ({"model_type": None}, ["None", "llama, qwen2, qwen3, gpt2"]),
        ({"hidden_size": None}, ["hidden_size", "None"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers", "0"]),
        ({"num_hidden_layers": True}, ["num_hidden_layers", "True"]),
        ({"vocab_size": 1.5}, ["vocab_size", "1.5"]),
        ({"num_attention_heads": 8}, ["num_heads 8", "num_kv_heads 3"]),
        ({"num_attention_heads": 5769, "num_key_value_heads": 3}, ["head_dim"]),
        ({"use_sliding_window": True}, ["use_sliding_window"]),
    ],
)
def test_a_config_that_cannot_be_trusted_is_refused(
    tmp_path: Path, change: dict[str, Any], words: list[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA_CONFIG, **change}))
    with pytest.raises(InputError) as error:
        shape_by_name(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_config_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        shape_by_name(path)


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"llama-4.*smollm2-135m.*llama-3\.1-70b"):
        shape_by_name("llama-4")
    with pytest.raises(InputError, match=r"no such config\.json"):
        shape_by_name(tmp_path)  # a directory without one


def test_an_unknown_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"int4.*bfloat16, float16, float32"):
        dtype_bytes("int4")


def test_a_shape_made_by_hand_is_checked_too() -> None:
    with pytest.raises(InputError, match="num_layers"):
        ModelShape("x", 0, 1, 1, 1, 1, 1, 1, 1)
