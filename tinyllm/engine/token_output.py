"""The output processor of real mode: collects tokens and text, and decides when a request stops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinyllm.engine.detokenizer import IncrementalDetokenizer, StopStrings
from tinyllm.engine.hashing import chain_hashes
from tinyllm.engine.output import OutputProcessor
from tinyllm.engine.runner import StepResult
from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.engine.tokenizer import Tokenizer
from tinyllm.errors import InputError
from tinyllm.policy.batch import ONE_TOKEN, Outcome, ScheduledBatch
from tinyllm.policy.request import FinishReason


@dataclass(slots=True)
class Output:
    """What a request has led to, so far or for good.

    Attributes:
        token_ids: sampled tokens, the one that ended it included.
        text: their text up to the stop, without special tokens; empty without a tokenizer. It grows by
            whole characters, and never shows a part of a stop string.
        logprobs: one entry a token where the request asked for them, else empty.
        finish_reason: why it ended, None while it goes on.
        stop_reason: the stop token id or stop string that ended it; None for EOS and everything else.
        error: why it failed.
        block_hashes: of its full blocks, prompt first (prefix cache only).
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[Any] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    block_hashes: list[bytes] = field(default_factory=list)


class _Track:
    """An unfinished request: its output, and what decides about the next token."""

    __slots__ = ("detokenizer", "num_prompt_tokens", "open_block", "output", "params", "stop_strings")

    def __init__(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, tokenizer: Tokenizer | None
    ) -> None:
        self.num_prompt_tokens = len(prompt_token_ids)
        self.params = params
        self.output = Output()
        self.detokenizer = IncrementalDetokenizer(tokenizer) if tokenizer else None
        self.stop_strings = StopStrings(params.stop)
        # Tokens of the last block, as long as it is not full.
        self.open_block: list[int] = []

    def add_text(self, text: str) -> str | None:
        """Append certain text; the stop string that it completes, if it may stop by now."""
        may_stop = len(self.output.token_ids) >= self.params.min_tokens
        shown, stop = self.stop_strings.add(text, may_stop)
        self.output.text += shown
        return stop

    def finish_text(self) -> str | None:
        """Append what was still open; the stop string that it completes."""
        stop = self.add_text(self.detokenizer.finish()) if self.detokenizer else None
        self.output.text += "" if stop else self.stop_strings.finish()
        return stop


class TokenOutputProcessor(OutputProcessor):
    """Turns sampled tokens into outcomes. A request ends by the first of these that holds:

    below `min_tokens` nothing; EOS, unless `ignore_eos`; a stop token id; a stop string; `max_tokens`; the
    end of the context. A row that failed ends alone, whatever its parameters.

    Args:
        eos_token_ids: any of them is EOS.
        max_model_len: tokens of prompt and output at most.
        block_size: hash full blocks of this size; None without a prefix cache.
        tokenizer: makes the text; without one there is none, and stop strings are refused.
    """

    def __init__(
        self,
        eos_token_ids: Sequence[int],
        max_model_len: int,
        *,
        block_size: int | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self._eos_token_ids = frozenset(eos_token_ids)
        self._max_model_len = max_model_len
        self._block_size = block_size
        self._tokenizer = tokenizer
        self._tracks: dict[str, _Track] = {}
        self._finished: dict[str, Output] = {}

    def add(self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams) -> list[bytes]:
        """Take in a request; return the hashes of its prompt's full blocks, none without a prefix cache.

        Raises:
            InputError: it has stop strings, and there is no tokenizer.
        """
        if params.stop and self._tokenizer is None:
            raise InputError(
                f"request {request_id}: stop strings need a tokenizer, and the model directory has no "
                "tokenizer.json; use stop_token_ids"
            )
        track = self._tracks[request_id] = _Track(prompt_token_ids, params, self._tokenizer)
        if self._block_size is None:
            return []
        hashes = chain_hashes(prompt_token_ids, self._block_size)
        track.open_block = list(prompt_token_ids[len(hashes) * self._block_size :])
        track.output.block_hashes = hashes
        return list(hashes)

    def process(self, batch: ScheduledBatch, result: StepResult | None) -> list[Outcome | None]:
        assert result is not None
        sampled = zip(
            result.token_ids,
            result.logprobs or [None] * len(result.token_ids),
            result.errors or [None] * len(result.token_ids),
            strict=True,
        )
        return [
            self._outcome(self._tracks[request.request_id], *next(sampled)) if samples else None
            for request, samples in zip(batch.requests, batch.samples, strict=True)
        ]

    def remove(self, request_id: str) -> None:
        """A request has ended; its output waits for `take`."""
        track = self._tracks.pop(request_id)
        if track.output.finish_reason is None:
            track.output.finish_reason = FinishReason.ABORT
            track.finish_text()
        self._finished[request_id] = track.output

    def get(self, request_id: str) -> Output:
        """The output of an unfinished request so far; it goes on growing."""
        return self._tracks[request_id].output

    def token_ids(self, request_id: str) -> list[int]:
        """The tokens sampled so far of an unfinished request."""
        return list(self._tracks[request_id].output.token_ids)

    def take(self, request_id: str) -> Output:
        """The output of a request that has ended; it is kept until then, and not any longer."""
        return self._finished.pop(request_id)

    def _outcome(self, track: _Track, token_id: int | None, logprobs: Any, error: str | None) -> Outcome:
        output = track.output
        if error is not None or token_id is None:
            output.error = error or "the model gave no token"
            output.finish_reason = FinishReason.ERROR
            track.finish_text()
            return Outcome(0, FinishReason.ERROR)
        output.token_ids.append(token_id)
        if logprobs is not None:
            output.logprobs.append(logprobs)
        new_hashes = self._fill_block(track, token_id)
        output.finish_reason = self._finish_reason(track, token_id)
        if output.finish_reason is None and not new_hashes:
            return ONE_TOKEN
        return Outcome(1, output.finish_reason, tuple(new_hashes))

    def _finish_reason(self, track: _Track, token_id: int) -> FinishReason | None:
        output, params = track.output, track.params
        num_output_tokens = len(output.token_ids)
        may_stop = num_output_tokens >= params.min_tokens
        is_eos = token_id in self._eos_token_ids and not params.ignore_eos
        if may_stop and (is_eos or token_id in params.stop_token_ids):
            # The token that stops is no part of the text.
            track.finish_text()
            output.stop_reason = None if is_eos else token_id
            return FinishReason.STOP
        stop = track.add_text(track.detokenizer.add(token_id)) if track.detokenizer else None
        ends = (
            num_output_tokens >= params.max_tokens
            or track.num_prompt_tokens + num_output_tokens >= self._max_model_len
        )
        if stop is None and ends:
            stop = track.finish_text()
        if stop is not None:
            output.stop_reason = stop
            return FinishReason.STOP
        return FinishReason.LENGTH if ends else None

    def _fill_block(self, track: _Track, token_id: int) -> Iterable[bytes]:
        """The hash of the block that this token fills up, if it does."""
        if self._block_size is None:
            return ()
        track.open_block.append(token_id)
        if len(track.open_block) < self._block_size:
            return ()
        hashes = track.output.block_hashes
        new_hashes = chain_hashes(track.open_block, self._block_size, hashes[-1] if hashes else b"")
        track.open_block = []
        hashes += new_hashes
        return new_hashes
