"""What vLLM's requests came to, told to the engine that follows."""

from __future__ import annotations

from typing import Any, Final

from tinyllm.engine.runner import StepResult
from tinyllm.policy.batch import ONE_TOKEN, Outcome, ScheduledBatch
from tinyllm.policy.request import FinishReason, Request

_REASONS: Final = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
    "error": FinishReason.ERROR,
    "repetition": FinishReason.STOP,
}


class VLLMOutputs:
    """The views of vLLM's requests, and an output processor that looks at those, which are updated before it is
    asked."""

    def __init__(self) -> None:
        self._theirs: dict[str, Any] = {}
        self._views: dict[str, Request] = {}
        self._block_hashes: dict[str, list[bytes]] = {}
        """Of the requests that have ended: what vLLM's prefix cache was keyed by."""

    def add(self, view: Request, request: Any) -> None:
        """A view of a request of vLLM's, which has an id of its own."""
        self._theirs[view.request_id] = request
        self._views[request.request_id] = view

    def theirs(self, view: Request) -> Any:
        """vLLM's request of a view."""
        return self._theirs[view.request_id]

    def view(self, request: Any) -> Request:
        """The view of a request of vLLM's."""
        return self._views[request.request_id]

    def knows(self, request: Any) -> bool:
        """Whether a request of vLLM's has a view already."""
        return request.request_id in self._views

    def all_block_hashes(self) -> dict[str, list[bytes]]:
        """Those of the unfinished requests as well."""
        return self._block_hashes | {
            name: list(request.block_hashes) for name, request in self._theirs.items()
        }

    def process(self, batch: ScheduledBatch, result: StepResult | None) -> list[Outcome | None]:
        outcomes: list[Outcome | None] = [self._outcome(view) for view in batch.requests]
        for row in batch.partial_rows:
            outcomes[row] = None
        return outcomes

    def _outcome(self, view: Request) -> Outcome:
        request = self._theirs[view.request_id]
        num_sampled = request.num_output_tokens - view.num_output_tokens
        reason = request.get_finished_reason()
        # Whom the client has left meanwhile is aborted once the step is over.
        if reason is None or str(reason) == "abort":
            return ONE_TOKEN if num_sampled == 1 else Outcome(num_sampled)
        return Outcome(num_sampled, _REASONS[str(reason)])

    def remove(self, request_id: str) -> None:
        request = self._theirs.pop(request_id, None)
        if request is not None:
            del self._views[request.request_id]
            if request.block_hashes:
                self._block_hashes[request_id] = list(request.block_hashes)
