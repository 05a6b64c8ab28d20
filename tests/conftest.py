"""Tiny checkpoints for tests of the whole real engine: random ones, and one that recites a given text."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

# The workers of a parallel run share the cores: a second thread each makes small matrix products many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

# Whoever is started in the background of a script inherits that interrupts are ignored; tests send some.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

VOCAB_SIZE = 264
"""256 byte tokens and the special ones, rounded up to a multiple of 8; a random model may sample the rest too."""
BOS, EOS, OTHER_EOS, IM_START = 256, 257, 258, 259
SPECIAL_TOKENS = ["<|bos|>", "<|im_end|>", "<|end|>", "<|im_start|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
GPT2_SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}


LONGEST = ("test_compare.py", "test_conformance.py")
"""Files that a parallel run has to begin with, or it ends with one worker idle while the other does them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)


class TinyCheckpoint:
    """A checkpoint directory, and the Transformers model that was saved into it."""

    def __init__(self, directory: Path, model: Any) -> None:
        self.directory = directory
        self.model = model
        self._greedy: dict[tuple[int, ...], list[int]] = {}

    def greedy(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        """What Transformers continues a prompt with, EOS ignored."""
        import torch
        from transformers import GenerationConfig

        known = self._greedy.get(tuple(prompt), [])
        if len(known) < max_tokens:
            config = GenerationConfig(max_new_tokens=max_tokens, do_sample=False, pad_token_id=0)
            self.model.generation_config.eos_token_id = None
            ids = torch.tensor([list(prompt)])
            output = self.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
            known = self._greedy[tuple(prompt)] = output[0, len(prompt) :].tolist()
        return known[:max_tokens]

    def edit(self, file: str, **changes: Any) -> None:
        """Change keys of a JSON file of the directory; None removes one."""
        path = self.directory / file
        values = (json.loads(path.read_text()) if path.exists() else {}) | changes
        path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


@pytest.fixture(scope="session")
def byte_tokenizer() -> Any:
    """A `tokenizers.Tokenizer` whose token id is the byte, with special tokens after the 256 bytes."""
    import tokenizers
    from tokenizers import AddedToken, decoders, models, pre_tokenizers

    # GPT-2's alphabet: printable bytes stand for themselves, the others for the code points from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in letters)}
    tokenizer = tokenizers.Tokenizer(models.BPE({letters[b]: b for b in range(256)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


@pytest.fixture
def make_checkpoint(tmp_path: Path, byte_tokenizer: Any) -> Callable[..., TinyCheckpoint]:
    """Save a random model of a family with the byte tokenizer; keyword arguments override its tiny shape."""
    transformers = pytest.importorskip(
        "transformers", reason="Transformers makes the checkpoints of these tests"
    )
    return lambda *args, **overrides: _random(transformers, tmp_path, byte_tokenizer, *args, **overrides)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory, byte_tokenizer: Any) -> TinyCheckpoint:
    """A random LLaMA with the byte tokenizer, for tests that change nothing in its directory."""
    transformers = pytest.importorskip(
        "transformers", reason="Transformers makes the checkpoints of these tests"
    )
    return _random(transformers, tmp_path_factory.mktemp("tiny"), byte_tokenizer)


@pytest.fixture
def reciting(tmp_path: Path, byte_tokenizer: Any) -> Callable[..., Path]:
    """`reciting(b"bytes", eos)`: a checkpoint that continues each byte with the one after it, the last with EOS.

    No byte may occur twice. Its embeddings are one-hot, its layers add nothing, its head is a permutation.
    """
    transformers = pytest.importorskip(
        "transformers", reason="Transformers makes the checkpoints of these tests"
    )

    def make(text: bytes, end: int = EOS, **config: Any) -> Path:
        import torch

        assert len(set(text)) == len(text)
        shape = SHAPE | {"hidden_size": VOCAB_SIZE, "num_attention_heads": 33, "num_key_value_heads": 33}
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**(shape | {"num_hidden_layers": 1} | config))
        )
        successor = dict(zip(text, [*text[1:], end], strict=True))
        with torch.no_grad():
            model.model.embed_tokens.weight.copy_(torch.eye(VOCAB_SIZE))
            model.model.layers[0].self_attn.o_proj.weight.zero_()
            model.model.layers[0].mlp.down_proj.weight.zero_()
            model.lm_head.weight.zero_()
            for token in range(VOCAB_SIZE):
                model.lm_head.weight[successor.get(token, token), token] = 1.0
        return _save(model, tmp_path / f"reciting-{end}", byte_tokenizer)

    return make


def _random(
    transformers: Any, parent: Path, tokenizer: Any, family: str = "llama", **overrides: Any
) -> TinyCheckpoint:
    import torch

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    if family == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**(GPT2_SHAPE | overrides)))
    else:
        config = transformers.AutoConfig.for_model(family, **(SHAPE | overrides))
        model = getattr(transformers, FAMILIES[family])(config)
    # The default weights are so small that all contexts lead to the same token.
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if "norm" in name or "ln_" in name else 0.3 * noise)
    return TinyCheckpoint(_save(model.eval(), parent / family, tokenizer), model)


def _save(model: Any, directory: Path, tokenizer: Any) -> Path:
    model.save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "bos_token": "<|bos|>", "eos_token": {"content": "<|im_end|>"}}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory
