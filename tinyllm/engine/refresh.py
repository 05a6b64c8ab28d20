"""Predictions that are made anew while a request decodes, from what is left of it."""

from __future__ import annotations

from collections.abc import Callable

from tinyllm.engine.output import OutputProcessor
from tinyllm.engine.runner import StepResult
from tinyllm.policy.batch import Outcome, ScheduledBatch

Repredict = Callable[[str, int], int]
"""(request id, output tokens so far) → a new prediction of the whole output length."""


class RefreshedPredictions(OutputProcessor):
    """An output processor that also has a new prediction for every request after each `every` output tokens, as a
    predictor that reads the model's state has (TRAIL, Shahout et al., 2024).

    Args:
        inner: says what becomes of each row.
        repredict: the predictor; like `inner` it may know what policies must not.
        every: output tokens from one prediction to the next.
    """

    def __init__(self, inner: OutputProcessor, repredict: Repredict, every: int) -> None:
        self.inner = inner
        self._repredict = repredict
        self._every = every

    def process(self, batch: ScheduledBatch, result: StepResult | None) -> list[Outcome | None]:
        outcomes = self.inner.process(batch, result)
        for row, request in enumerate(batch.requests):
            outcome = outcomes[row]
            if outcome is None or outcome.finish_reason is not None:
                continue
            num_output_tokens = request.num_output_tokens + outcome.num_sampled
            if num_output_tokens % self._every == 0:
                prediction = self._repredict(request.request_id, num_output_tokens)
                outcomes[row] = outcome._replace(predicted_output_tokens=prediction)
        return outcomes

    def remove(self, request_id: str) -> None:
        self.inner.remove(request_id)
