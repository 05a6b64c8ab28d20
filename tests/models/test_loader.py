"""The loader accounts for every tensor, and a broken directory is one line."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tinyllm.errors import InputError
from tinyllm.models.loader import load_model

IDS = torch.randint(0, 96, (12,), generator=torch.Generator().manual_seed(3))
Logits = Callable[..., torch.Tensor]


def assert_same_logits(oracle: Any, logits_of: Logits) -> None:
    torch.testing.assert_close(
        logits_of(load_model(oracle.directory), IDS), oracle.logits(IDS), atol=1e-4, rtol=0
    )


def rewrite(oracle: Any, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Path:
    """Change the tensors of a checkpoint of one file."""
    path: Path = oracle.directory / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    save_file(change(tensors), path)
    return path


def as_bin(oracle: Any, legacy: bool = False) -> None:
    path = oracle.directory / "model.safetensors"
    torch.save(
        load_file(path), oracle.directory / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy
    )
    path.unlink()


def one_line(directory: Path, **kwargs: Any) -> str:
    with pytest.raises(InputError) as caught:
        load_model(directory, **kwargs)
    message = str(caught.value)
    assert "\n" not in message and "; " in message
    return message


# --- what loads ---


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_shards_with_an_index_load_like_one_file(
    family: str, make_oracle: Callable[..., Any], logits_of: Logits
) -> None:
    oracle = make_oracle(family, max_shard_size="20KB")
    assert len(list(oracle.directory.glob("*.safetensors"))) > 2
    assert_same_logits(oracle, logits_of)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_tied_embeddings_load_with_and_without_a_stored_head(
    family: str, make_oracle: Callable[..., Any], logits_of: Logits
) -> None:
    oracle = make_oracle(family, tie_word_embeddings=True)
    embedding = {"llama": "model.embed_tokens.weight", "gpt2": "transformer.wte.weight"}[family]
    assert "lm_head.weight" not in load_file(oracle.directory / "model.safetensors")
    assert_same_logits(oracle, logits_of)
    rewrite(oracle, lambda tensors: tensors | {"lm_head.weight": tensors[embedding].clone()})
    assert_same_logits(oracle, logits_of)
    model = load_model(oracle.directory)
    assert model.lm_head.weight.data_ptr() == model.embed_tokens.weight.data_ptr()
    rewrite(oracle, lambda tensors: {name: tensor for name, tensor in tensors.items() if name != embedding})
    assert_same_logits(oracle, logits_of)


def test_a_stored_head_that_differs_from_the_tied_embedding_wins_with_a_warning(
    make_oracle: Callable[..., Any], logits_of: Logits, caplog: pytest.LogCaptureFixture
) -> None:
    oracle = make_oracle(tie_word_embeddings=True)
    rewrite(
        oracle, lambda tensors: tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].flip(0)}
    )
    with caplog.at_level(logging.WARNING):
        flipped = logits_of(load_model(oracle.directory), IDS)
    assert "not tied" in caplog.text
    torch.testing.assert_close(flipped, oracle.logits(IDS).flip(1), atol=1e-4, rtol=0)


def test_gpt2_loads_without_the_prefix_and_with_mask_buffers(
    make_oracle: Callable[..., Any], logits_of: Logits, caplog: pytest.LogCaptureFixture
) -> None:
    oracle = make_oracle("gpt2")

    def as_first_published(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        for layer in range(3):
            bare[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 16, 16, dtype=torch.uint8).tril()
            bare[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
        return bare

    rewrite(oracle, as_first_published)
    with caplog.at_level(logging.WARNING):
        assert_same_logits(oracle, logits_of)
    assert not caplog.records


def test_saved_rope_frequencies_are_passed_over(
    make_oracle: Callable[..., Any], logits_of: Logits, caplog: pytest.LogCaptureFixture
) -> None:
    oracle = make_oracle()
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(oracle, lambda tensors: tensors | {name: torch.zeros(4)})
    with caplog.at_level(logging.WARNING):
        assert_same_logits(oracle, logits_of)
    assert not caplog.records


def test_a_stray_tensor_is_ignored_with_a_warning_that_names_it(
    make_oracle: Callable[..., Any], logits_of: Logits, caplog: pytest.LogCaptureFixture
) -> None:
    oracle = make_oracle()
    rewrite(oracle, lambda tensors: tensors | {"model.layers.9.mystery": torch.zeros(3)})
    with caplog.at_level(logging.WARNING):
        assert_same_logits(oracle, logits_of)
    assert "model.layers.9.mystery" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_weights_are_widened_to_float32(
    dtype: torch.dtype, make_oracle: Callable[..., Any], logits_of: Logits
) -> None:
    oracle = make_oracle()
    for parameter in oracle.model.parameters():
        parameter.data = parameter.data.to(dtype).float()
    rewrite(oracle, lambda tensors: {name: tensor.to(dtype) for name, tensor in tensors.items()})
    assert_same_logits(oracle, logits_of)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_bin_file_loads_with_a_warning(
    legacy: bool, make_oracle: Callable[..., Any], logits_of: Logits, caplog: pytest.LogCaptureFixture
) -> None:
    oracle = make_oracle()
    as_bin(oracle, legacy)
    with caplog.at_level(logging.WARNING):
        assert_same_logits(oracle, logits_of)
    assert "pytorch_model.bin" in caplog.text


def test_a_sharded_bin_checkpoint_loads(make_oracle: Callable[..., Any], logits_of: Logits) -> None:
    oracle = make_oracle()
    as_bin(oracle)
    state = torch.load(oracle.directory / "pytorch_model.bin", weights_only=True)
    (oracle.directory / "pytorch_model.bin").unlink()
    weight_map = {name: f"part-{index % 2}.bin" for index, name in enumerate(state)}
    for file in ("part-0.bin", "part-1.bin"):
        torch.save(
            {name: state[name] for name, held in weight_map.items() if held == file}, oracle.directory / file
        )
    index = oracle.directory / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert_same_logits(oracle, logits_of)


def test_no_parameter_requires_a_gradient_and_the_model_is_in_evaluation_mode(
    make_oracle: Callable[..., Any],
) -> None:
    model = load_model(make_oracle().directory)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is measured in the units of Linux")
def test_the_peak_of_memory_is_the_model_and_little_more(make_oracle: Callable[..., Any]) -> None:
    oracle = make_oracle(hidden_size=512, intermediate_size=2048, num_hidden_layers=6, vocab_size=4096)
    weights = (oracle.directory / "model.safetensors").stat().st_size
    assert weights > 100e6
    program = """
import resource, sys, torch
from tinyllm.models.loader import load_model
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = load_model(sys.argv[1])
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, oracle.directory], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 1.3 * weights


# --- what does not, and says so in one line ---


def test_a_missing_shard_is_named(make_oracle: Callable[..., Any]) -> None:
    directory = make_oracle(max_shard_size="20KB").directory
    victim = sorted(directory.glob("*.safetensors"))[1]
    victim.unlink()
    assert victim.name in one_line(directory)


def test_a_tensor_that_its_shard_lacks_is_named(make_oracle: Callable[..., Any]) -> None:
    directory = make_oracle(max_shard_size="20KB").directory
    index = directory / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = (
        "model-00001-of-" + next(iter(content["weight_map"].values())).split("-of-")[1]
    )
    index.write_text(json.dumps(content))
    assert "model.norm.weight" in one_line(directory)


@pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": 3}', '{"weight_map": {"a": "../../x"}}'])
def test_a_bad_index_is_refused(content: str, make_oracle: Callable[..., Any]) -> None:
    directory = make_oracle(max_shard_size="20KB").directory
    (directory / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json" in one_line(directory)


@pytest.mark.parametrize("kept", [0, 5, 200, 0.5, 0.99])
def test_a_truncated_file_is_named(kept: float, make_oracle: Callable[..., Any]) -> None:
    directory = make_oracle().directory
    path = directory / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    message = one_line(directory)
    assert "model.safetensors" in message and "truncated" in message


def test_missing_tensors_are_named(make_oracle: Callable[..., Any]) -> None:
    oracle = make_oracle()
    gone = {"model.layers.1.self_attn.k_proj.weight", "lm_head.weight"}
    rewrite(oracle, lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in gone})
    message = one_line(oracle.directory)
    assert all(name in message for name in gone)


def test_a_wrong_shape_is_named_with_both_shapes(make_oracle: Callable[..., Any]) -> None:
    oracle = make_oracle()
    oracle.edit_config(vocab_size=95)
    message = one_line(oracle.directory)
    assert "model.embed_tokens.weight" in message and "[96, 32]" in message and "[95, 32]" in message


def test_integer_weights_are_refused(make_oracle: Callable[..., Any]) -> None:
    oracle = make_oracle()
    name = "model.layers.0.mlp.up_proj.weight"
    rewrite(oracle, lambda tensors: tensors | {name: tensors[name].to(torch.int8)})
    message = one_line(oracle.directory)
    assert name in message and "int8" in message


def test_one_tensor_under_two_names_is_refused(make_oracle: Callable[..., Any]) -> None:
    oracle = make_oracle("gpt2")
    rewrite(oracle, lambda tensors: tensors | {"wpe.weight": tensors["transformer.wpe.weight"].clone()})
    message = one_line(oracle.directory)
    assert "transformer.wpe.weight" in message and "are one tensor" in message


class _RunsCode:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Path.touch, (Path("executed"),)


@pytest.mark.parametrize("content", [_RunsCode(), [1, 2], {"a": 3}])
def test_a_bin_file_with_anything_but_tensors_is_refused(
    content: object, make_oracle: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = make_oracle()
    monkeypatch.chdir(oracle.directory)
    as_bin(oracle)
    torch.save(content, oracle.directory / "pytorch_model.bin")
    assert "pytorch_model.bin" in one_line(oracle.directory)
    assert not (oracle.directory / "executed").exists()


def test_a_truncated_bin_file_is_refused(make_oracle: Callable[..., Any]) -> None:
    oracle = make_oracle()
    as_bin(oracle)
    path = oracle.directory / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:1000])
    assert "pytorch_model.bin" in one_line(oracle.directory)


def test_a_directory_without_weights_says_what_it_looked_for(make_oracle: Callable[..., Any]) -> None:
    directory = make_oracle().directory
    (directory / "model.safetensors").unlink()
    assert "model.safetensors" in one_line(directory)


def test_a_wrong_dtype_or_device_is_refused(make_oracle: Callable[..., Any]) -> None:
    directory = make_oracle().directory
    assert "float32, bfloat16" in one_line(directory, dtype="float8")
    assert "'abacus'" in one_line(directory, device="abacus")
    if not torch.cuda.is_available():
        assert "'cuda'" in one_line(directory, device="cuda")
