"""Cases from the field through the real engine: tokens in, tokens out (E1 to E10)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tinyllm.engine.llm import LLM
from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.errors import InputError

EOS, OTHER_EOS = 257, 258
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_llm(directory: Path, **options: Any) -> LLM:
    return LLM(directory, **({"num_gpu_blocks": 128, "block_size": 4} | options))


def edit_weights(directory: Path, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    path = directory / "model.safetensors"
    save_file({k: v.clone() for k, v in edit(load_file(path)).items()}, path, metadata={"format": "pt"})


def test_e1_an_empty_text_without_bos_is_an_error_of_its_own(tiny_llama: Any) -> None:
    empty, other = make_llm(tiny_llama.directory).generate(["", "x"], GREEDY)
    assert empty.error == "the prompt is empty" and empty.finish_reason == "rejected"
    assert len(other.token_ids) == 8


def test_e1_with_bos_an_empty_text_is_a_prompt(
    make_checkpoint: Callable[..., Any], byte_tokenizer: Any
) -> None:
    import tokenizers
    from tokenizers.processors import TemplateProcessing

    checkpoint = make_checkpoint()
    with_bos = tokenizers.Tokenizer.from_str(byte_tokenizer.to_str())
    with_bos.post_processor = TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 256)])
    with_bos.save(str(checkpoint.directory / "tokenizer.json"))
    [output] = make_llm(checkpoint.directory).generate("", GREEDY)
    assert output.prompt_token_ids == [256]
    assert list(output.token_ids) == checkpoint.greedy([256], 8)


def test_e2_split_characters_stream_to_exactly_the_final_text(reciting: Callable[..., Path]) -> None:
    llm = make_llm(reciting("A 世ab".encode()))
    outputs = list(llm.stream("A", SamplingParams(max_tokens=20, temperature=0.0)))
    assert [output.delta for output in outputs] == [" ", "", "", "世", "a", "b", ""]
    assert outputs[-1].text == " 世ab"
    assert (outputs[-1].finish_reason, outputs[-1].token_ids[-1]) == ("stop", EOS)


def test_e3_no_part_of_a_stop_string_is_ever_emitted(reciting: Callable[..., Path]) -> None:
    llm = make_llm(reciting(b"ABCDEFGHIJKLM"))
    outputs = list(llm.stream("A", SamplingParams(max_tokens=20, temperature=0.0, stop="DEFGHIJ")))
    assert "".join(output.delta for output in outputs) == outputs[-1].text == "BC"
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == ("stop", "DEFGHIJ")
    assert len(outputs[-1].token_ids) == 9


@pytest.mark.parametrize("stored", [False, True], ids=["without lm_head", "with lm_head"])
def test_e4_tied_embeddings_load_with_and_without_a_stored_head(
    make_checkpoint: Callable[..., Any], stored: bool
) -> None:
    checkpoint = make_checkpoint(tie_word_embeddings=True)
    expected = checkpoint.greedy([1, 2, 3], 8)
    if stored:
        edit_weights(checkpoint.directory, lambda w: w | {"lm_head.weight": w["model.embed_tokens.weight"]})
    [output] = make_llm(checkpoint.directory).generate([1, 2, 3], GREEDY)
    assert list(output.token_ids) == expected


def test_e5_llama3_rope_agrees_beyond_8k_positions(make_checkpoint: Callable[..., Any]) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 2048,
    }
    checkpoint = make_checkpoint(rope_parameters=rope, max_position_embeddings=16_384, num_hidden_layers=1)
    prompt = [(i * i) % 251 for i in range(8_200)]
    [output] = make_llm(checkpoint.directory, block_size=16, num_gpu_blocks=1024).generate([prompt], GREEDY)
    assert list(output.token_ids) == checkpoint.greedy(prompt, 8)


def test_e5_an_unknown_rope_type_is_an_error(make_checkpoint: Callable[..., Any]) -> None:
    checkpoint = make_checkpoint()
    checkpoint.edit("config.json", rope_parameters={"rope_type": "spiral", "rope_theta": 1e4})
    with pytest.raises(InputError, match="rope type 'spiral' is not supported"):
        LLM(checkpoint.directory)


@pytest.mark.parametrize("end", [EOS, OTHER_EOS])
def test_e6_either_of_two_eos_ids_ends_an_output_and_none_under_ignore_eos(
    reciting: Callable[..., Path], end: int
) -> None:
    directory = reciting(b"ABC", end)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS, OTHER_EOS]}))
    llm = make_llm(directory)
    [stopped] = llm.generate("A", SamplingParams(max_tokens=8, temperature=0.0))
    assert (list(stopped.token_ids), stopped.finish_reason) == ([*b"BC", end], "stop")
    [ignored] = llm.generate("A", GREEDY)
    assert (list(ignored.token_ids), ignored.finish_reason) == ([*b"BC", *[end] * 6], "length")
    assert ignored.text == "BC"


def test_e6_min_tokens_forbids_eos_until_then(reciting: Callable[..., Path]) -> None:
    llm = make_llm(reciting(b"ABC"))
    [output] = llm.generate("A", SamplingParams(max_tokens=8, min_tokens=5, temperature=0.0))
    assert EOS not in output.token_ids[:5] and len(output.token_ids) >= 5


def test_e7_a_seeded_request_repeats_beside_an_unseeded_one(tiny_llama: Any) -> None:
    seeded = SamplingParams(max_tokens=12, seed=7, ignore_eos=True)
    unseeded = SamplingParams(max_tokens=12, ignore_eos=True)
    runs = [
        make_llm(tiny_llama.directory).generate(["ab", "cd", "ef"], [unseeded, seeded, unseeded])
        for _ in range(3)
    ]
    alone = make_llm(tiny_llama.directory).generate("cd", seeded)[0]
    assert {run[1].token_ids for run in runs} == {alone.token_ids}
    assert len({run[0].token_ids for run in runs}) > 1


def test_e8_minus_infinity_is_never_sampled_and_nan_fails_alone(
    tiny_llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_llm(tiny_llama.directory)
    model = llm.engine.runner.model
    logits_of, steps = model.compute_logits, 0

    def masked(hidden: torch.Tensor) -> torch.Tensor:
        nonlocal steps
        steps += 1
        logits = logits_of(hidden)
        logits[:, 10:] = float("-inf")
        if steps == 3:
            logits[1] = float("nan")
        return logits

    monkeypatch.setattr(model, "compute_logits", masked)
    noisy = SamplingParams(max_tokens=8, temperature=5.0, top_p=0.9, ignore_eos=True, logprobs=2)
    greedy, failed, random = llm.generate(["a", "b", "c"], [GREEDY, noisy, noisy])
    assert len(greedy.token_ids) == len(random.token_ids) == 8
    assert max(*greedy.token_ids, *random.token_ids) < 10
    assert all(entry.logprob > float("-inf") for entry in random.logprobs)
    assert failed.finish_reason == "error" and "not finite" in str(failed.error)
    assert len(failed.token_ids) == 2 and llm.engine.scheduler.kv.pool.num_used == 0


def test_e9_a_missing_shard_is_named_and_a_stray_tensor_is_only_warned_of(
    make_checkpoint: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = make_checkpoint()
    directory = checkpoint.directory
    edit_weights(directory, lambda w: w | {"model.stray.weight": torch.zeros(2)})
    with caplog.at_level(logging.WARNING):
        [output] = make_llm(directory).generate([1, 2], GREEDY)
    assert list(output.token_ids) == checkpoint.greedy([1, 2], 8)
    assert "model.stray.weight" in caplog.text
    names = list(load_file(directory / "model.safetensors"))
    index = {"weight_map": dict.fromkeys(names, "model.safetensors") | {names[0]: "model-2.safetensors"}}
    (directory / "model.safetensors").rename(directory / "model-1.safetensors")
    index["weight_map"] = {
        name: "model-1.safetensors" if shard == "model.safetensors" else shard
        for name, shard in index["weight_map"].items()
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"model-2\.safetensors"):
        LLM(directory)


@pytest.mark.parametrize("prefix", [True, False], ids=["with transformer.", "without"])
def test_e10_gpt2_loads_under_both_names_with_its_mask_buffers(
    make_checkpoint: Callable[..., Any], prefix: bool
) -> None:
    checkpoint = make_checkpoint("gpt2")
    expected = checkpoint.greedy([1, 2, 3], 8)

    def rename(weights: dict[str, Any]) -> dict[str, Any]:
        bare = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
        bare |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 1024, 1024).tril() for layer in range(2)}
        return {f"transformer.{name}" if prefix else name: tensor for name, tensor in bare.items()}

    edit_weights(checkpoint.directory, rename)
    [output] = make_llm(checkpoint.directory).generate([1, 2, 3], GREEDY)
    assert list(output.token_ids) == expected


def test_e10_position_1024_of_gpt2_is_refused(make_checkpoint: Callable[..., Any]) -> None:
    checkpoint = make_checkpoint("gpt2")
    llm = make_llm(checkpoint.directory, block_size=16)
    full, last = llm.generate([[1] * 1024, [1] * 1023], GREEDY)
    assert "max_model_len 1024" in str(full.error)
    assert (len(last.token_ids), last.finish_reason) == (1, "length")
    with pytest.raises(InputError, match="context is 1024"):
        make_llm(checkpoint.directory, max_model_len=1025)
