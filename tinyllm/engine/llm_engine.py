"""The step API: requests in between steps, one step at a time, outputs as they grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyllm.engine.real import RealEngine, real_config
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.engine.token_output import Output
from tinyllm.errors import InputError
from tinyllm.policy.registry import make_policy
from tinyllm.policy.request import FinishReason, Request

Prompt = str | Sequence[int]
"""A text, to which the tokenizer adds BOS where the model has one, or token ids, taken as they are."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What a request has led to, so far or for good.

    Attributes:
        request_id: as given, or a number.
        prompt: its text, None where token ids were given.
        prompt_token_ids: as the model sees them.
        text: the output without special tokens, up to the stop; empty without a tokenizer.
        delta: the end of `text` that is new since the request's last output. The deltas join to the text.
        token_ids: sampled tokens, the one that ended it included.
        finish_reason: `stop`, `length`, `abort`, `rejected` or `error`; None while it goes on.
        stop_reason: the stop token id or stop string that ended it; None for EOS and all else.
        logprobs: a `tinyllm.runner.logprobs.Logprobs` for each token where asked for, else empty.
        num_cached_tokens: prompt tokens found in the prefix cache when it was last admitted.
        error: why it was refused or failed, in one line.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: Sequence[int]
    text: str = ""
    delta: str = ""
    token_ids: Sequence[int] = ()
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Sequence[Any] = ()
    num_cached_tokens: int = 0
    error: str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class _Live:
    """An unfinished request: what was asked, and how much of its output has been handed out."""

    prompt: str | None
    prompt_token_ids: Sequence[int]
    num_tokens: int = 0
    num_chars: int = 0


class LLMEngine:
    """A model with its engine, in this process, driven step by step. Not for several threads at once.

    Args:
        model: a local Hugging Face directory (`tinyllm get-model` brings one).
        device, dtype: `cpu` or `cuda`; `float32` or, experimental, `bfloat16`.
        attention: name of an attention backend; `auto` is the fastest on the device.
        policy: name of a scheduling policy, or `module:Class`; `policy_args` are its keyword arguments.
        seed: fixes the draws of requests that bring no seed; None takes one from the system.
        compact_weights: on the CPU, keep weights in fewer bytes than float32 where that changes no bit of them.
        gpu_memory_utilization: share of the device's free memory for weights and KV cache.
        enable_prefix_caching: share the KV of equal beginnings, between requests and over time.
        options: any other field of `SchedulerConfig`, such as `num_gpu_blocks`, `block_size`, `max_num_seqs`,
            `max_num_batched_tokens`, `max_model_len`; None is the default.

    Attributes:
        engine: the parts: scheduler, runner, output processor.
        tokenizer: None where the directory has no `tokenizer.json`.

    Raises:
        InputError: whatever is wrong with the directory, an option or the memory, in one line.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        attention: str = "auto",
        policy: str = "fcfs",
        policy_args: Mapping[str, Any] | None = None,
        seed: int | None = None,
        compact_weights: bool = True,
        gpu_memory_utilization: float | None = None,
        enable_prefix_caching: bool = True,
        **options: Any,
    ) -> None:
        config = real_config(
            model,
            device=device,
            dtype=dtype,
            gpu_memory_utilization=gpu_memory_utilization,
            enable_prefix_caching=enable_prefix_caching,
            **options,
        )
        chosen = make_policy(policy, policy_args)
        self.model = Path(model)
        self.engine = RealEngine(
            model,
            config,
            chosen,
            device=device,
            dtype=dtype,
            attention=attention,
            seed=seed,
            compact_weights=compact_weights,
        )
        self.tokenizer = self.engine.tokenizer
        self._live: dict[str, _Live] = {}
        self._ended: list[RequestOutput] = []

    def now(self) -> int:
        """The engine's clock: integer ns since it was made."""
        return self.engine.clock()

    @property
    def has_unfinished(self) -> bool:
        """Whether a further `step` has an output to give, now or later."""
        return bool(self._live or self._ended)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        arrival: int | None = None,
        priority: int = 0,
        tenant: str | None = None,
        session: str | None = None,
        predicted_output_tokens: int | None = None,
    ) -> None:
        """Let a request wait. If it can't be served, the next `step` returns its output, with the `error`.

        Args:
            request_id: unique among the unfinished ones.
            arrival: intended arrival on the engine's clock (`now`), ns; default: now. Policies see it.
            priority, tenant, session, predicted_output_tokens: for the policies, as in `Request`.

        Raises:
            InputError: a text is given, and the model directory has no tokenizer.
        """
        params = sampling_params or SamplingParams()
        text = prompt if isinstance(prompt, str) else None
        token_ids = self.encode(prompt) if isinstance(prompt, str) else prompt
        record = ArrivalRecord(
            request_id,
            source_row=0,
            arrival_ns=self.now() if arrival is None else arrival,
            prompt_tokens=len(token_ids),
            max_tokens=params.max_tokens,
            target_output_tokens=params.max_tokens,
            predicted_output_tokens=predicted_output_tokens,
            priority=priority,
            tenant=tenant,
            session=session,
        )
        self._submit(record, text, token_ids, params)

    def abort(self, request_id: str) -> bool:
        """End an unfinished request; its output comes with the next `step`. False if there is none of this id."""
        request = self.engine.scheduler.get(request_id)
        if request is None or not self.engine.abort(request_id, self.now()):
            return False
        self._ended.append(self._last_output(request))
        return True

    def step(self) -> list[RequestOutput]:
        """Run one step.

        Returns:
            The outputs that have grown or ended since the last step, those refused or aborted first.
        """
        changed, self._ended = self._ended, []
        finished = self.engine.step()
        if finished is None:
            return changed
        outputs = self.engine.outputs
        for request in self.engine.scheduler.running:
            output = outputs.get(request.request_id)
            if len(output.token_ids) > self._live[request.request_id].num_tokens:
                changed.append(self._make_output(request, output))
        return changed + [self._last_output(request) for request in finished]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text.

        Raises:
            InputError: the model directory has no tokenizer.
        """
        if self.tokenizer is None:
            raise InputError(f"{self.model}: has no tokenizer.json; give prompts as token ids")
        return self.tokenizer.encode(text, add_special_tokens)

    def _submit(
        self, record: ArrivalRecord, text: str | None, token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        error = self.engine.add_request(record, token_ids, params, self.now())
        if error is None:
            self._live[record.request_id] = _Live(text, token_ids)
        else:
            self._refuse(record.request_id, text, token_ids, error)

    def _refuse(self, request_id: str, text: str | None, token_ids: Sequence[int], error: str) -> None:
        reason = FinishReason.REJECTED.value
        self._ended.append(RequestOutput(request_id, text, token_ids, finish_reason=reason, error=error))

    def _last_output(self, request: Request) -> RequestOutput:
        output = self._make_output(request, self.engine.outputs.take(request.request_id))
        del self._live[request.request_id]
        return output

    def _make_output(self, request: Request, output: Output) -> RequestOutput:
        live = self._live[request.request_id]
        delta = output.text[live.num_chars :]
        live.num_tokens, live.num_chars = len(output.token_ids), len(output.text)
        return RequestOutput(
            request.request_id,
            live.prompt,
            live.prompt_token_ids,
            text=output.text,
            delta=delta,
            token_ids=tuple(output.token_ids),
            finish_reason=output.finish_reason.value if output.finish_reason else None,
            stop_reason=output.stop_reason,
            logprobs=tuple(output.logprobs),
            num_cached_tokens=request.num_cached_tokens,
            error=output.error,
        )
