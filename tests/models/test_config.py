"""config.json in all its dialects becomes one ModelConfig, or one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tinyllm.errors import InputError
from tinyllm.models.config import ModelConfig
from tinyllm.models.registry import ARCHITECTURES
from tinyllm.models.rope import Llama3Rope, YarnRope

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"]}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"]}
GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 96,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def read(tmp_path: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return ModelConfig.from_directory(tmp_path)


def refusal(tmp_path: Path, config: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        read(tmp_path, config)
    message = str(caught.value)
    assert "\n" not in message and "; " in message and "config.json" in message
    return message


def test_absent_settings_have_the_defaults_of_their_family(tmp_path: Path) -> None:
    llama, qwen3, gpt2 = (read(tmp_path, config) for config in (LLAMA, QWEN3, GPT2))
    assert (llama.num_kv_heads, llama.head_dim, llama.norm_eps) == (4, 8, 1e-6)
    assert (llama.tie_word_embeddings, gpt2.tie_word_embeddings) == (False, True)
    assert llama.rope is not None and llama.rope.rope_theta == 10000.0
    assert qwen3.head_dim == 128
    assert (gpt2.intermediate_size, gpt2.max_position_embeddings, gpt2.rope) == (128, 1024, None)


@pytest.mark.parametrize(
    ("config", "generation", "eos"),
    [
        (7, None, (7,)),
        ([7, 8], None, (7, 8)),
        (7, 9, (9,)),
        (7, [9, 10], (9, 10)),
        (0, None, (0,)),
        (None, None, ()),
        ([7], None, (7,)),
    ],
)
def test_end_tokens_come_from_the_generation_config_first(
    config: Any, generation: Any, eos: tuple[int, ...], tmp_path: Path
) -> None:
    parsed = read(tmp_path, LLAMA | {"eos_token_id": config}, {"eos_token_id": generation})
    assert parsed.eos_token_ids == eos


def test_the_start_token_is_optional(tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA).bos_token_id is None
    assert read(tmp_path, LLAMA | {"bos_token_id": 0}).bos_token_id == 0


def test_windows_apply_to_the_layers_that_ask_for_them(tmp_path: Path) -> None:
    window = {"use_sliding_window": True, "sliding_window": 16}
    by_number = read(tmp_path, QWEN2 | window | {"max_window_layers": 3})
    assert [by_number.sliding_window_of(layer) for layer in range(4)] == [None, None, None, 16]
    everywhere = read(tmp_path, QWEN2 | window | {"max_window_layers": 0})
    assert [everywhere.sliding_window_of(layer) for layer in range(4)] == [16] * 4
    kinds = ["sliding_attention", "full_attention"] * 2
    by_type = read(tmp_path, QWEN3 | window | {"layer_types": kinds})
    assert [by_type.sliding_window_of(layer) for layer in range(4)] == [16, None, 16, None]
    switched_off = read(tmp_path, QWEN2 | {"use_sliding_window": False, "sliding_window": 16})
    assert switched_off.sliding_window is None and switched_off.sliding_window_of(3) is None


def test_the_original_context_may_stand_beside_the_rope_settings_or_be_the_whole(tmp_path: Path) -> None:
    inside = read(tmp_path, LLAMA | {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 64}})
    beside = read(tmp_path, LLAMA | {"rope_scaling": LLAMA3, "original_max_position_embeddings": 32})
    absent = read(tmp_path, LLAMA | {"rope_scaling": LLAMA3})
    contexts = [
        config.rope.original_max_position_embeddings
        for config in (inside, beside, absent)
        if isinstance(config.rope, Llama3Rope)
    ]
    assert contexts == [64, 32, 128]


def test_yarn_without_a_factor_takes_the_ratio_of_the_contexts(tmp_path: Path) -> None:
    settings = {"rope_type": "yarn", "original_max_position_embeddings": 32}
    rope = read(tmp_path, LLAMA | {"rope_parameters": settings}).rope
    assert isinstance(rope, YarnRope) and rope.factor == 4.0


def test_an_unknown_architecture_lists_those_supported(tmp_path: Path) -> None:
    message = refusal(tmp_path, LLAMA | {"architectures": ["MambaForCausalLM"]})
    assert "MambaForCausalLM" in message and all(name in message for name in ARCHITECTURES)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", ["dynamic", "longrope", "mrope", 3])
def test_an_unknown_rope_type_is_an_error(key: str, kind: object, tmp_path: Path) -> None:
    message = refusal(tmp_path, LLAMA | {key: {"type": kind, "factor": 2.0}})
    assert repr(kind) in message and "yarn" in message


@pytest.mark.parametrize(
    ("base", "changes", "named"),
    [
        (LLAMA, {"vocab_size": None}, "vocab_size"),
        (LLAMA, {"vocab_size": "many"}, "vocab_size"),
        (LLAMA, {"vocab_size": True}, "vocab_size"),
        (LLAMA, {"num_hidden_layers": 0}, "num_hidden_layers"),
        (LLAMA, {"num_hidden_layers": 2.5}, "num_hidden_layers"),
        (LLAMA, {"rms_norm_eps": 0}, "rms_norm_eps"),
        (LLAMA, {"num_attention_heads": 5}, "head"),
        (LLAMA, {"num_key_value_heads": 3}, "num_key_value_heads"),
        (LLAMA, {"head_dim": 7}, "head_dim"),
        (LLAMA, {"hidden_act": "quick_gelu"}, "quick_gelu"),
        (LLAMA, {"tie_word_embeddings": 1}, "tie_word_embeddings"),
        (LLAMA, {"architectures": None}, "architectures"),
        (LLAMA, {"architectures": []}, "architectures"),
        (LLAMA, {"quantization_config": {"bits": 4}}, "quantization_config"),
        (LLAMA, {"sliding_window": 16}, "sliding_window"),
        (LLAMA, {"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        (LLAMA, {"eos_token_id": "</s>"}, "eos_token_id"),
        (LLAMA, {"eos_token_id": [1, None]}, "eos_token_id"),
        (LLAMA, {"rope_scaling": "yarn"}, "rope_scaling"),
        (LLAMA, {"rope_scaling": {"type": "linear"}}, "rope_scaling.factor"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling.factor"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": -2}}, "rope_scaling.factor"),
        (LLAMA, {"rope_scaling": {"type": "llama3", "factor": 2}}, "rope_scaling.low_freq_factor"),
        (LLAMA, {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "full_attention"),
        (LLAMA, {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (LLAMA, {"rope_theta": float("nan")}, "rope_theta"),
        (QWEN2, {"use_sliding_window": True, "sliding_window": -1}, "sliding_window"),
        (QWEN2, {"use_sliding_window": "yes"}, "use_sliding_window"),
        (QWEN2, {"layer_types": ["sliding_attention"] * 4}, "use_sliding_window"),
        (QWEN2, {"layer_types": ["full_attention"] * 3}, "layer_types"),
        (QWEN3, {"layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        (GPT2, {"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn"),
        (GPT2, {"add_cross_attention": True}, "add_cross_attention"),
        (GPT2, {"scale_attn_weights": False}, "scale_attn_weights"),
        (GPT2, {"activation_function": "mish"}, "mish"),
        (GPT2, {"n_head": 5}, "n_head"),
        (GPT2, {"sliding_window": 8}, "sliding_window"),
    ],
)
def test_what_the_model_cannot_honour_is_refused_by_name(
    base: dict[str, Any], changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    assert named in refusal(tmp_path, base | changes)


def test_a_directory_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json: no such file"):
        ModelConfig.from_directory(tmp_path)
    with pytest.raises(InputError, match="no such directory"):
        ModelConfig.from_directory(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe\x00"])
def test_a_config_that_is_no_json_object_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=r"config\.json") as caught:
        ModelConfig.from_directory(tmp_path)
    assert "\n" not in str(caught.value)
