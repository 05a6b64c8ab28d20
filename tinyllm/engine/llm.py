"""The engine as a library: prompts or conversations in, text out, with the simulator's scheduler inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from numbers import Integral
from typing import NamedTuple, cast

from tinyllm.engine.chat import ChatTemplate, Message
from tinyllm.engine.llm_engine import LLMEngine, Prompt, RequestOutput
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.errors import IncompleteRunError, InputError
from tinyllm.policy.explain import waits_for

Params = SamplingParams | Sequence[SamplingParams] | None
"""One for all prompts, one for each, or the default ones."""

Conversation = Sequence[Message]


class _Job(NamedTuple):
    """A prompt on its way into the engine; with an `error`, it never gets there."""

    text: str | None
    token_ids: Sequence[int]
    error: str | None = None


class LLM(LLMEngine):
    """An `LLMEngine`, see there for its options, that runs whole lists of prompts to their end.

    Example::

        llm = LLM("models/smollm2-135m")
        [output] = llm.chat([{"role": "user", "content": "What is the capital of France?"}])
        print(output.text)
    """

    _num_generated = 0

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None, *, progress: bool = False
    ) -> list[RequestOutput]:
        """Run prompts to their end.

        A request that can't be served gives an output with its `error`; the others go on.

        Args:
            prompts: one, or a list. A list of integers is one prompt of token ids.
            sampling_params: one for all, or one each; default `SamplingParams()`.
            progress: show a bar on standard error.

        Returns:
            One output a prompt, in their order.

        Raises:
            InputError: requests of the step API are unfinished, there is a text and no tokenizer, or the
                numbers of prompts and parameters differ.
            IncompleteRunError: the policy holds every request for ever.
        """
        prompts = _as_list(prompts)
        return _collect(self.stream(prompts, sampling_params), len(prompts), progress)

    def stream(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None
    ) -> Iterator[RequestOutput]:
        """Like `generate`, but give a request's output whenever it has grown; `delta` is what is new in it.

        Requests whose outputs nobody fetches any more, since the caller leaves the loop, are aborted.
        """
        return self._run([self._job(prompt) for prompt in _as_list(prompts)], sampling_params)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        *,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Let the model answer one conversation, or each of a list, by the checkpoint's chat template.

        Raises:
            InputError: as `generate`, or the checkpoint has no template. A conversation that the template
                refuses is an error of its own output.
        """
        conversations = _as_conversations(messages)
        return _collect(self.stream_chat(conversations, sampling_params), len(conversations), progress)

    def stream_chat(
        self, messages: Conversation | Sequence[Conversation], sampling_params: Params = None
    ) -> Iterator[RequestOutput]:
        """Like `chat`, as `stream` is like `generate`."""
        jobs = [self._chat_job(conversation) for conversation in _as_conversations(messages)]
        return self._run(jobs, sampling_params)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """Of the model directory. Raises `InputError` where there is none."""
        return ChatTemplate.from_directory(self.model)

    def _job(self, prompt: Prompt) -> _Job:
        return _Job(prompt, self.encode(prompt)) if isinstance(prompt, str) else _Job(None, prompt)

    def _chat_job(self, conversation: Conversation) -> _Job:
        template = self.chat_template
        try:
            text = template.render(conversation)
        except InputError as error:
            return _Job(None, (), str(error))
        # A template writes its special tokens itself.
        return _Job(text, self.encode(text, add_special_tokens=False))

    def _run(self, jobs: list[_Job], sampling_params: Params) -> Iterator[RequestOutput]:
        if self.has_unfinished:
            raise InputError(
                "the engine is busy with other requests; run them to their end, or abort them, first"
            )
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            each: Sequence[SamplingParams] = [sampling_params or SamplingParams()] * len(jobs)
        else:
            each = sampling_params
        if len(each) != len(jobs):
            raise InputError(
                f"{len(each)} sampling parameters for {len(jobs)} prompts; give one, or one each"
            )
        return self._outputs(jobs, each)

    def _outputs(self, jobs: list[_Job], params: Sequence[SamplingParams]) -> Iterator[RequestOutput]:
        request_ids = [str(self._num_generated + number) for number in range(len(jobs))]
        self._num_generated += len(jobs)
        try:
            for request_id, job, own in zip(request_ids, jobs, params, strict=True):
                if job.error is not None:
                    self._refuse(request_id, job.text, job.token_ids, job.error)
                    continue
                lengths = (len(job.token_ids), own.max_tokens, own.max_tokens)
                self._submit(ArrivalRecord(request_id, 0, self.now(), *lengths), job.text, job.token_ids, own)
            while self.has_unfinished:
                num_steps = self.engine.core.num_steps
                outputs = self.step()
                if not outputs and self.engine.core.num_steps == num_steps:
                    raise IncompleteRunError(f"stalled: {self._stalled()}")
                yield from outputs
        finally:
            for request_id in request_ids:
                self.abort(request_id)
            self._ended.clear()

    def _stalled(self) -> str:
        """What the first unfinished request waits for."""
        scheduler = self.engine.scheduler
        request = scheduler.unfinished()[0]
        return f"request {request.request_id} {waits_for(scheduler, request, self.now())}"


def _as_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], Integral)):
        return [cast(Prompt, prompts)]
    return cast(Sequence[Prompt], prompts)


def _as_conversations(messages: Conversation | Sequence[Conversation]) -> Sequence[Conversation]:
    is_one = bool(messages) and isinstance(messages[0], Mapping)
    return cast(Sequence[Conversation], [messages] if is_one else messages)


def _collect(outputs: Iterator[RequestOutput], num_requests: int, progress: bool) -> list[RequestOutput]:
    """The last output of each request, in the order of the requests."""
    finished: Iterable[RequestOutput] = (output for output in outputs if output.finished)
    if progress:
        from rich.console import Console
        from rich.progress import track

        console = Console(stderr=True)
        finished = track(
            finished,
            "generate",
            num_requests,
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
    return sorted(finished, key=lambda output: int(output.request_id))
