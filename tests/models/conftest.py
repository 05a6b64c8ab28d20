"""Tiny random checkpoints made by Transformers, and attention in its plainest form."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tinyllm.models.base import DecoderModel
from tinyllm.models.config import ModelConfig

transformers = pytest.importorskip("transformers", reason="Transformers is the oracle of these tests")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2_SHAPE = {"vocab_size": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


class Oracle:
    """A checkpoint directory and the Transformers model that was saved into it."""

    def __init__(self, directory: Path, model: Any) -> None:
        self.directory = directory
        self.model = model

    def logits(self, input_ids: Tensor, positions: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            ids = None if positions is None else positions[None]
            logits: Tensor = self.model(input_ids[None], position_ids=ids).logits[0]
            return logits

    def edit_config(self, **changes: Any) -> None:
        """Change keys of config.json; None removes one."""
        path = self.directory / "config.json"
        config = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


@pytest.fixture
def make_oracle(tmp_path: Path) -> Callable[..., Oracle]:
    """Save a random model of a family; keyword arguments override its tiny shape."""

    def make(family: str = "llama", *, max_shard_size: str = "5GB", **overrides: Any) -> Oracle:
        torch.manual_seed(0)
        if family == "gpt2":
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**(GPT2_SHAPE | overrides)))
        else:
            config = transformers.AutoConfig.for_model(family, **(SHAPE | overrides))
            model = getattr(transformers, FAMILIES[family])(config)
        randomize(model)
        model.eval()
        directory = tmp_path / family
        model.save_pretrained(directory, max_shard_size=max_shard_size)
        return Oracle(directory, model)

    return make


@pytest.fixture
def logits_of() -> Callable[..., Tensor]:
    """Logits of every token of one sequence, float32, by the reference attention."""

    def logits_of(model: DecoderModel, input_ids: Tensor, positions: Tensor | None = None) -> Tensor:
        positions = torch.arange(len(input_ids)) if positions is None else positions
        return model.compute_logits(model(input_ids, positions, ReferenceAttend(model.config)))

    return logits_of


def randomize(model: torch.nn.Module) -> None:
    """Weights large enough that a fault in any one of them shows: biases and norms are constants by default."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if "norm" in name or "ln_" in name else 0.15 * noise)


class ReferenceAttend:
    """Causal attention over one sequence that fills the batch, with the windows of the config."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        num_tokens, num_heads, head_dim = q.shape
        assert k.shape == v.shape == (num_tokens, self.config.num_kv_heads, head_dim)
        k, v = (x.repeat_interleave(num_heads // x.shape[1], dim=1) for x in (k, v))
        distance = torch.arange(num_tokens)[:, None] - torch.arange(num_tokens)[None, :]
        visible = distance >= 0
        if (window := self.config.sliding_window_of(layer)) is not None:
            visible &= distance < window
        scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * head_dim**-0.5
        weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, v.float()).to(q.dtype)
