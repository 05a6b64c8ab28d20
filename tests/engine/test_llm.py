"""The library's interface: what goes in, what comes out, and what happens to a request that can't be served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tinyllm.engine.llm import LLM
from tinyllm.engine.llm_engine import RequestOutput
from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.errors import IncompleteRunError, InputError
from tinyllm.policy.fcfs import FCFS
from tinyllm.policy.request import Request

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


class HoldsForEver(FCFS):
    def key(self, view: Request, now: int) -> None:  # type: ignore[override]
        return None


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def llm(tiny_llama: Any) -> LLM:
    return LLM(tiny_llama.directory, num_gpu_blocks=64, block_size=4)


def final(outputs: Any) -> dict[str, RequestOutput]:
    return {output.request_id: output for output in outputs if output.finished}


def drain(llm: LLM) -> list[RequestOutput]:
    outputs = []
    while llm.has_unfinished:
        outputs += llm.step()
    return outputs


# ── generate ─────────────────────────────────────────────────────────────────────────────────────────


def test_outputs_come_in_the_order_of_the_prompts_whoever_ends_first(llm: LLM, tiny_llama: Any) -> None:
    lengths = [8, 1, 5]
    each = [SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=True) for n in lengths]
    outputs = llm.generate(["one", "two", "three"], each)
    assert [o.prompt for o in outputs] == ["one", "two", "three"]
    assert [len(o.token_ids) for o in outputs] == lengths
    assert [o.finish_reason for o in outputs] == ["length"] * 3
    assert list(outputs[2].token_ids) == tiny_llama.greedy(list(b"three"), 5)


def test_a_text_is_its_token_ids(llm: LLM) -> None:
    [from_text] = llm.generate("héllo", GREEDY)
    [from_ids] = llm.generate(list("héllo".encode()), GREEDY)
    assert from_text.token_ids == from_ids.token_ids
    assert (from_text.prompt, from_ids.prompt) == ("héllo", None)
    assert from_text.prompt_token_ids == from_ids.prompt_token_ids


def test_arrays_of_token_ids_are_prompts_too(llm: LLM, tiny_llama: Any) -> None:
    single = llm.generate(np.array([1, 2, 3]), GREEDY)  # type: ignore[arg-type]
    several = llm.generate([np.array([1, 2, 3]), [4]], GREEDY, progress=True)  # type: ignore[list-item]
    assert list(single[0].token_ids) == list(several[0].token_ids) == tiny_llama.greedy([1, 2, 3], 8)
    assert list(several[1].token_ids) == tiny_llama.greedy([4], 8)


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_a_bad_request_gets_an_error_and_the_others_go_on(llm: LLM) -> None:
    prompts = [[], [1, 264], [1, -1], list(range(250)) * 2, "fine"]
    outputs = llm.generate(prompts, GREEDY)
    assert [output.finish_reason for output in outputs] == ["rejected"] * 4 + ["length"]
    assert "empty" in str(outputs[0].error)
    assert "264" in str(outputs[1].error) and "0 to 263" in str(outputs[1].error)
    assert "-1" in str(outputs[2].error)
    assert "max_model_len 256" in str(outputs[3].error)
    assert outputs[4].error is None and len(outputs[4].token_ids) == 8


def test_parameters_must_be_one_or_one_each(llm: LLM) -> None:
    with pytest.raises(InputError, match="2 sampling parameters for 3 prompts"):
        llm.generate(["a", "b", "c"], [GREEDY, GREEDY])


def test_the_context_ends_an_output(llm: LLM) -> None:
    [output] = llm.generate(
        [list(range(250))], SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
    )
    assert len(output.token_ids) == 5
    [output] = llm.generate(
        [list(range(250))], SamplingParams(max_tokens=99, temperature=0.0, ignore_eos=True)
    )
    assert (len(output.token_ids), output.finish_reason) == (6, "length")


def test_log_probabilities_are_those_of_transformers(llm: LLM, tiny_llama: Any) -> None:
    prompt = list(b"log")
    [output] = llm.generate(
        [prompt], SamplingParams(max_tokens=4, temperature=0.0, logprobs=3, ignore_eos=True)
    )
    tokens = list(output.token_ids)
    with torch.no_grad():
        logits = tiny_llama.model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1)
    for row, (token, entry) in enumerate(zip(tokens, output.logprobs, strict=True)):
        assert entry.logprob == pytest.approx(expected[row, token].item(), abs=1e-4)
        assert list(entry.top_token_ids) == expected[row].topk(3).indices.tolist()


def test_a_second_turn_finds_the_first_in_the_prefix_cache(llm: LLM) -> None:
    prompt = list(range(20))
    [first] = llm.generate([prompt], GREEDY)
    assert first.num_cached_tokens == 0
    [second] = llm.generate([[*prompt, *first.token_ids, 7]], GREEDY)
    # 28 tokens, the last of which was never computed: 27 full ones make 6 blocks of 4.
    assert second.num_cached_tokens == 24


# ── stream ───────────────────────────────────────────────────────────────────────────────────────────


def test_deltas_join_to_the_text_and_tokens_come_one_at_a_time(llm: LLM) -> None:
    prompts = ["one", "two", ""]
    seen: dict[str, list[RequestOutput]] = {}
    for output in llm.stream(prompts, GREEDY):
        seen.setdefault(output.request_id, []).append(output)
    assert len(seen) == 3
    *served, refused = (seen[key] for key in sorted(seen))
    for outputs in served:
        assert "".join(output.delta for output in outputs) == outputs[-1].text
        assert [len(output.token_ids) for output in outputs] == list(range(1, 9))
        assert [output.finished for output in outputs] == [False] * 7 + [True]
    assert [output.finished for output in refused] == [True]


def test_leaving_a_stream_aborts_its_requests(llm: LLM) -> None:
    for output in llm.stream(["one", "two"], GREEDY):
        if len(output.token_ids) == 2:
            break
    else:
        pytest.fail("the stream ended early")
    del output
    assert not llm.has_unfinished
    assert llm.engine.scheduler.kv.pool.num_used == 0
    assert len(llm.generate("again", GREEDY)[0].token_ids) == 8


def test_an_interrupted_step_leaves_a_usable_engine(
    llm: LLM, tiny_llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, calls = llm.engine.runner.run, 0

    def interrupted(batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return run(batch)

    monkeypatch.setattr(llm.engine.runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["one", "two"], GREEDY)
    assert not llm.has_unfinished and llm.engine.scheduler.kv.pool.num_used == 0
    one, _ = llm.generate(["one", "two"], GREEDY)
    assert list(one.token_ids) == tiny_llama.greedy(list(b"one"), 8)


def test_a_busy_engine_refuses_generate(llm: LLM) -> None:
    llm.add_request("mine", "one", GREEDY)
    with pytest.raises(InputError, match="busy"):
        llm.generate("two", GREEDY)
    assert len(final(drain(llm))["mine"].token_ids) == 8


# ── the step API ─────────────────────────────────────────────────────────────────────────────────────


def test_requests_join_and_leave_between_steps(llm: LLM, tiny_llama: Any) -> None:
    llm.add_request("a", [1, 2, 3], GREEDY)
    first = llm.step()
    assert [output.request_id for output in first] == ["a"]
    llm.add_request("b", [4, 5, 6], GREEDY)
    llm.add_request("c", [7, 8, 9], GREEDY)
    llm.step()
    assert llm.abort("c")
    outputs = final(drain(llm))
    assert list(outputs["a"].token_ids) == tiny_llama.greedy([1, 2, 3], 8)
    assert list(outputs["b"].token_ids) == tiny_llama.greedy([4, 5, 6], 8)
    assert list(outputs["c"].token_ids) == tiny_llama.greedy([7, 8, 9], 1)
    assert outputs["c"].finish_reason == "abort"
    assert llm.step() == []


def test_aborting_what_is_not_there_says_so(llm: LLM) -> None:
    assert not llm.abort("nobody")


def test_a_waiting_request_can_be_aborted(tiny_llama: Any) -> None:
    llm = LLM(tiny_llama.directory, num_gpu_blocks=64, max_num_seqs=1)
    llm.add_request("runs", [1], GREEDY)
    llm.add_request("waits", [2], GREEDY)
    llm.step()
    assert llm.abort("waits")
    outputs = final(drain(llm))
    assert (outputs["waits"].finish_reason, outputs["waits"].token_ids) == ("abort", ())
    assert len(outputs["runs"].token_ids) == 8


def test_policies_see_what_the_step_api_was_told(tiny_llama: Any) -> None:
    llm = LLM(tiny_llama.directory, num_gpu_blocks=64, max_num_seqs=1, policy="priority")
    llm.add_request("low", [1], GREEDY, priority=5)
    llm.add_request("high", [2], GREEDY, priority=1)
    assert [output.request_id for output in llm.step()] == ["high"]


def test_a_policy_that_holds_everything_is_reported_and_leaves_nothing_behind(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm.engine.scheduler, "policy", HoldsForEver())
    llm.engine.scheduler.waiting._policy = HoldsForEver()  # type: ignore[attr-defined]
    with pytest.raises(IncompleteRunError, match="held by the policy"):
        llm.generate("one", GREEDY)
    assert not llm.has_unfinished


# ── what is wrong from the start ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preemption": "swap"}, "preemption swap"),
        ({"policy": "nonsense"}, "policy nonsense"),
        ({"max_model_len": 257}, "context is 256"),
        ({"max_model_len": 1}, "max-model-len 1"),
        ({"block_size": 0}, "block-size 0"),
        ({"num_gpu_blocks": 2**31 - 1}, "GiB are free"),
        ({"gpu_memory_utilization": 1e-9}, "hold no block"),
        ({"gpu_memory_utilization": 1.5}, "gpu-memory-utilization 1.5"),
        ({"dtype": "int4"}, "int4"),
        ({"device": "abacus"}, "abacus"),
        ({"attention": "none"}, "attention none"),
        ({"max_seqs": 3}, "max_seqs: unknown"),
    ],
)
def test_a_wrong_option_is_one_clear_line(tiny_llama: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        LLM(tiny_llama.directory, **options)
    assert "\n" not in str(caught.value)


def test_a_directory_that_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such directory"):
        LLM(tmp_path / "missing")
    with pytest.raises(InputError, match=r"config\.json"):
        LLM(tmp_path)


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(
    make_checkpoint: Callable[..., Any],
) -> None:
    checkpoint = make_checkpoint(vocab_size=256, bos_token_id=1, eos_token_id=2)
    with pytest.raises(InputError, match=r"tokenizer\.json: has token id 259.* ends at 255"):
        LLM(checkpoint.directory)


def test_a_broken_tokenizer_file_is_named(make_checkpoint: Callable[..., Any]) -> None:
    checkpoint = make_checkpoint()
    (checkpoint.directory / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer\.json: cannot be read"):
        LLM(checkpoint.directory)


def test_without_a_tokenizer_token_ids_work_and_texts_are_refused(
    make_checkpoint: Callable[..., Any],
) -> None:
    checkpoint = make_checkpoint()
    (checkpoint.directory / "tokenizer.json").unlink()
    llm = LLM(checkpoint.directory, num_gpu_blocks=64)
    with pytest.raises(InputError, match="token ids"):
        llm.generate("text", GREEDY)
    stops = SamplingParams(max_tokens=3, stop="x")
    good, bad = llm.generate([[1, 2], [1, 2]], [GREEDY, stops])
    assert list(good.token_ids) == checkpoint.greedy([1, 2], 8) and good.text == ""
    assert "stop strings need a tokenizer" in str(bad.error)
    assert not llm.has_unfinished and not llm.engine.runner._requests


# ── chat ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_conversation_is_rendered_by_the_template_with_its_special_tokens(llm: LLM) -> None:
    [output] = llm.chat([{"role": "user", "content": "Hi"}], GREEDY)
    assert output.prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert list(output.prompt_token_ids) == [259, *b"user\nHi", 257, *b"\n", 259, *b"assistant\n"]


def test_a_refused_conversation_fails_alone(make_checkpoint: Callable[..., Any]) -> None:
    checkpoint = make_checkpoint()
    template = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}hi"
    checkpoint.edit("tokenizer_config.json", chat_template=template)
    llm = LLM(checkpoint.directory, num_gpu_blocks=64)
    bad, good = llm.chat([[{"role": "system", "content": "x"}], [{"role": "user", "content": "x"}]], GREEDY)
    assert "user first" in str(bad.error)
    assert good.error is None and len(good.token_ids) == 8


def test_a_checkpoint_without_a_template_says_so(make_checkpoint: Callable[..., Any]) -> None:
    checkpoint = make_checkpoint()
    checkpoint.edit("tokenizer_config.json", chat_template=None)
    with pytest.raises(InputError, match="no chat template"):
        LLM(checkpoint.directory, num_gpu_blocks=8).chat([{"role": "user", "content": "Hi"}])
