"""When a request stops, in which order the rules apply, and what the scheduler hears of it."""

from __future__ import annotations

from typing import Any

import pytest

from tinyllm.engine.hashing import chain_hashes
from tinyllm.engine.runner import StepResult
from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.engine.token_output import Output, TokenOutputProcessor
from tinyllm.engine.tokenizer import Tokenizer
from tinyllm.errors import InputError
from tinyllm.policy.batch import ONE_TOKEN, Outcome, ScheduledBatch
from tinyllm.policy.request import FinishReason, Request

EOS, OTHER_EOS = 257, 258
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.fixture(scope="module")
def tokenizer(byte_tokenizer: Any) -> Tokenizer:
    return Tokenizer(byte_tokenizer)


def batch_of(*rows: tuple[str, bool]) -> ScheduledBatch:
    batch = ScheduledBatch()
    for row, (request_id, samples) in enumerate(rows):
        batch.requests.append(Request(request_id, 4, 100))
        batch.num_scheduled_tokens.append(1)
        if not samples:
            batch.partial_rows.append(row)
    return batch


def run(
    tokenizer: Tokenizer, tokens: list[int], *, prompt: int = 4, max_model_len: int = 100, **params: Any
) -> tuple[Output, list[Outcome | None]]:
    """Feed tokens until the request ends; those left over show that it ended too early."""
    processor = TokenOutputProcessor([EOS, OTHER_EOS], max_model_len, tokenizer=tokenizer)
    processor.add("r", [1] * prompt, SamplingParams(**{"max_tokens": 50} | params))
    outcomes: list[Outcome | None] = []
    for token in tokens:
        outcomes += processor.process(batch_of(("r", True)), StepResult([token]))
        if outcomes[-1] is not None and outcomes[-1].finish_reason is not None:
            processor.remove("r")
            return processor.take("r"), outcomes
    return processor.get("r"), outcomes


def text(string: str) -> list[int]:
    return list(string.encode())


# ── the rules, one by one, then in pairs ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("eos", [EOS, OTHER_EOS])
def test_any_of_the_eos_ids_ends_a_request_and_is_no_text(tokenizer: Tokenizer, eos: int) -> None:
    output, outcomes = run(tokenizer, [*text("ab"), eos, *text("c")])
    assert outcomes == [ONE_TOKEN, ONE_TOKEN, Outcome(1, STOP)]
    assert (output.text, output.token_ids, output.stop_reason) == ("ab", [*text("ab"), eos], None)


def test_ignore_eos_goes_on_and_stops_at_a_stop_id_all_the_same(tokenizer: Tokenizer) -> None:
    output, outcomes = run(tokenizer, [EOS, 97, 98, 99], ignore_eos=True, stop_token_ids=[98])
    assert len(outcomes) == 3
    assert (output.text, output.stop_reason, output.finish_reason) == ("a", 98, STOP)


def test_an_eos_that_is_also_a_stop_id_stops_under_ignore_eos(tokenizer: Tokenizer) -> None:
    output, _ = run(tokenizer, [97, EOS, 98], ignore_eos=True, stop_token_ids=[EOS])
    assert (output.finish_reason, output.stop_reason) == (STOP, EOS)


def test_a_stop_string_ends_a_request_and_is_not_in_its_text(tokenizer: Tokenizer) -> None:
    output, outcomes = run(tokenizer, text("ABCDEFGHIJK"), stop=["DEFGHIJ"])
    assert len(outcomes) == 10
    assert (output.text, output.stop_reason, len(output.token_ids)) == ("ABC", "DEFGHIJ", 10)


def test_max_tokens_and_the_context_end_a_request(tokenizer: Tokenizer) -> None:
    output, outcomes = run(tokenizer, text("abcdef"), max_tokens=3)
    assert (outcomes[-1], output.text) == (Outcome(1, LENGTH), "abc")
    output, outcomes = run(tokenizer, text("abcdef"), prompt=8, max_model_len=10)
    assert (outcomes[-1], output.text) == (Outcome(1, LENGTH), "ab")


def test_below_min_tokens_nothing_stops(tokenizer: Tokenizer) -> None:
    tokens = [EOS, 98, *text("xy"), 97, EOS]
    output, outcomes = run(tokenizer, tokens, min_tokens=5, stop=["xy"], stop_token_ids=[98])
    assert len(outcomes) == 6
    assert (output.text, output.finish_reason) == ("bxya", STOP)


def test_a_stop_string_on_the_last_allowed_token_is_a_stop(tokenizer: Tokenizer) -> None:
    output, _ = run(tokenizer, text("ab"), max_tokens=2, stop=["b"])
    assert (output.text, output.finish_reason, output.stop_reason) == ("a", STOP, "b")


def test_what_a_stop_string_held_back_is_shown_when_the_request_ends_otherwise(tokenizer: Tokenizer) -> None:
    output, _ = run(tokenizer, text("abDEF"), max_tokens=5, stop=["DEFG"])
    assert (output.text, output.finish_reason) == ("abDEF", LENGTH)
    output, _ = run(tokenizer, [*text("abDEF"), EOS], stop=["DEFG"])
    assert (output.text, output.finish_reason) == ("abDEF", STOP)


def test_a_torn_character_is_shown_as_such_only_at_the_end(tokenizer: Tokenizer) -> None:
    torn = text("a世")[:-1]
    output, _ = run(tokenizer, torn)
    assert output.text == "a"
    output, _ = run(tokenizer, torn, max_tokens=3)
    assert output.text == "a\ufffd"


# ── rows, errors, lives ──────────────────────────────────────────────────────────────────────────────


def test_results_belong_to_the_sampling_rows_in_their_order(tokenizer: Tokenizer) -> None:
    processor = TokenOutputProcessor([EOS], 100, tokenizer=tokenizer)
    for request_id in "abc":
        processor.add(request_id, [1], SamplingParams(logprobs=1 if request_id == "c" else None))
    outcomes = processor.process(
        batch_of(("a", True), ("b", False), ("c", True)), StepResult([97, EOS], [None, "logprob"])
    )
    assert outcomes == [ONE_TOKEN, None, Outcome(1, STOP)]
    assert processor.token_ids("a") == [97] and processor.token_ids("b") == []
    assert processor.get("c").logprobs == ["logprob"] and processor.get("a").logprobs == []


def test_a_row_that_failed_ends_alone(tokenizer: Tokenizer) -> None:
    processor = TokenOutputProcessor([EOS], 100, tokenizer=tokenizer)
    for request_id in "ab":
        processor.add(request_id, [1], SamplingParams(min_tokens=5))
    outcomes = processor.process(
        batch_of(("a", True), ("b", True)), StepResult([None, 98], None, ["not finite", None])
    )
    assert outcomes == [Outcome(0, FinishReason.ERROR), ONE_TOKEN]
    processor.remove("a")
    failed = processor.take("a")
    assert (failed.error, failed.finish_reason, failed.token_ids) == ("not finite", FinishReason.ERROR, [])


def test_an_output_is_kept_until_it_is_taken_once(tokenizer: Tokenizer) -> None:
    processor = TokenOutputProcessor([EOS], 100, tokenizer=tokenizer)
    processor.add("r", [1], SamplingParams(stop="bc"))
    processor.process(batch_of(("r", True)), StepResult([97]))
    processor.process(batch_of(("r", True)), StepResult([98]))
    assert processor.get("r").text == "a"
    processor.remove("r")
    processor.add("r", [1], SamplingParams())
    output = processor.take("r")
    assert (output.text, output.finish_reason) == ("ab", FinishReason.ABORT)
    assert processor.token_ids("r") == []
    with pytest.raises(KeyError):
        processor.take("r")


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    processor = TokenOutputProcessor([EOS], 100)
    with pytest.raises(InputError, match="stop_token_ids"):
        processor.add("r", [1], SamplingParams(stop="x"))
    processor.add("r", [1], SamplingParams(max_tokens=1))
    assert processor.process(batch_of(("r", True)), StepResult([5])) == [Outcome(1, LENGTH)]


# ── block hashes ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("num_prompt_tokens", range(1, 10))
def test_blocks_are_hashed_when_they_fill_up_prompt_and_output_in_one_chain(num_prompt_tokens: int) -> None:
    processor = TokenOutputProcessor([EOS], 100, block_size=4)
    prompt, outputs = list(range(num_prompt_tokens)), list(range(50, 61))
    hashes = processor.add("r", prompt, SamplingParams(max_tokens=50))
    assert hashes == chain_hashes(prompt, 4)
    for n, token in enumerate(outputs, start=1):
        [outcome] = processor.process(batch_of(("r", True)), StepResult([token]))
        assert outcome is not None
        assert len(outcome.new_block_hashes) == ((num_prompt_tokens + n) % 4 == 0)
        assert (outcome is ONE_TOKEN) == (not outcome.new_block_hashes)
        hashes += outcome.new_block_hashes
    assert hashes == chain_hashes(prompt + outputs, 4) == processor.get("r").block_hashes
