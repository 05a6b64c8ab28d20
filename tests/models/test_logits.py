"""Every family and rope form gives the logits of Transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tinyllm.errors import InputError
from tinyllm.models.loader import load_model

IDS = torch.randint(0, 96, (40,), generator=torch.Generator().manual_seed(7))

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama with every bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with one key-value head": ("llama", {"num_key_value_heads": 1}),
    "llama without grouped queries": ("llama", {"num_key_value_heads": 4}),
    "llama with a wide head": ("llama", {"head_dim": 16}),
    "llama with gelu": ("llama", {"hidden_act": "gelu"}),
    "qwen2": ("qwen2", {}),
    "qwen2 with windows by number": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3 with default head_dim": ("qwen3", {}),
    "qwen3 with biases, tied": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "qwen3 with windows by layer type": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gpt2": ("gpt2", {}),
    "gpt2 untied": ("gpt2", {"tie_word_embeddings": False}),
    "gpt2 with an inner width": ("gpt2", {"n_inner": 40, "activation_function": "gelu"}),
}

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn with an attention factor": YARN | {"attention_factor": 1.3, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn with mscale": YARN | {"mscale": 0.7, "mscale_all_dim": 0.4, "truncate": False},
}


@pytest.mark.parametrize("case", FAMILIES)
def test_a_family_gives_the_logits_of_transformers(
    case: str, make_oracle: Callable[..., Any], logits_of: Callable[..., torch.Tensor]
) -> None:
    family, overrides = FAMILIES[case]
    oracle = make_oracle(family, **overrides)
    torch.testing.assert_close(
        logits_of(load_model(oracle.directory), IDS), oracle.logits(IDS), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("form", ROPES)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_rope_form_gives_the_logits_of_transformers_far_beyond_the_original_context(
    form: str, family: str, make_oracle: Callable[..., Any], logits_of: Callable[..., torch.Tensor]
) -> None:
    oracle = make_oracle(family, rope_parameters=ROPES[form], max_position_embeddings=32768, head_dim=16)
    model = load_model(oracle.directory)
    for first in (0, 9000, 32000):
        positions = torch.arange(first, first + len(IDS))
        torch.testing.assert_close(
            logits_of(model, IDS, positions), oracle.logits(IDS, positions), atol=1e-4, rtol=0
        )


@pytest.mark.parametrize("type_key", ["type", "rope_type"])
@pytest.mark.parametrize("form", [None, "linear", "llama3", "yarn"])
def test_the_older_rope_settings_mean_the_same(
    form: str | None, type_key: str, make_oracle: Callable[..., Any], logits_of: Callable[..., torch.Tensor]
) -> None:
    settings = ROPES[form or "default"]
    oracle = make_oracle(rope_parameters=settings)
    scaling = {key: value for key, value in settings.items() if key not in ("rope_theta", "rope_type")}
    oracle.edit_config(
        rope_parameters=None,
        rope_theta=settings["rope_theta"],
        rope_scaling=scaling | {type_key: form} if form else None,
    )
    torch.testing.assert_close(
        logits_of(load_model(oracle.directory), IDS), oracle.logits(IDS), atol=1e-4, rtol=0
    )


def test_the_window_changes_the_logits(
    make_oracle: Callable[..., Any], logits_of: Callable[..., torch.Tensor]
) -> None:
    window = {"sliding_window": 5, "max_window_layers": 1}
    oracle = make_oracle("qwen2", use_sliding_window=True, **window)
    windowed = logits_of(load_model(oracle.directory), IDS)
    oracle.edit_config(use_sliding_window=False, layer_types=None)
    full = logits_of(load_model(oracle.directory), IDS)
    assert torch.equal(windowed[:5], full[:5])
    assert (windowed[5:] - full[5:]).abs().max() > 0.1


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_bfloat16_stays_near_float32_and_gives_float32_logits(
    family: str, make_oracle: Callable[..., Any], logits_of: Callable[..., torch.Tensor]
) -> None:
    oracle = make_oracle(family)
    model = load_model(oracle.directory, dtype="bfloat16")
    logits = logits_of(model, IDS)
    assert logits.dtype == torch.float32
    expected = oracle.logits(IDS)
    assert (logits - expected).std() < 0.05 * expected.std()
    # Rounded to bfloat16, the values would be few.
    assert not torch.equal(logits, logits.bfloat16().float())
    assert {parameter.dtype for name, parameter in model.named_parameters() if "norm" in name} == {
        torch.float32
    }


def test_a_batch_of_no_tokens_is_allowed(
    make_oracle: Callable[..., Any], logits_of: Callable[..., Any]
) -> None:
    empty = torch.empty(0, dtype=torch.int64)
    for family in ("llama", "gpt2"):
        assert logits_of(load_model(make_oracle(family).directory), empty).shape == (0, 96)


def test_gpt2_computes_its_last_position_and_refuses_the_next(
    make_oracle: Callable[..., Any], logits_of: Callable[..., torch.Tensor]
) -> None:
    oracle = make_oracle("gpt2")
    model = load_model(oracle.directory)
    positions = torch.arange(1022, 1024)
    torch.testing.assert_close(
        logits_of(model, IDS[:2], positions), oracle.logits(IDS[:2], positions), atol=1e-4, rtol=0
    )
    with pytest.raises(InputError, match="position 1024: the model has 1024 learned positions"):
        logits_of(model, IDS[:2], positions + 1)
