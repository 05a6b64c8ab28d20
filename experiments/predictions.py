"""`--predictor` and `--refresh-predictions`: guesses of output lengths, made once or again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinyllm.engine.output import OutputProcessor
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.engine.refresh import RefreshedPredictions
from tinyllm.errors import InputError
from tinyllm.policy.predictor import make_predictor


@dataclass(frozen=True)
class Refresh:
    """Predictions that are made anew while requests decode.

    Attributes:
        predictor: as `--predictor` takes it.
        seed: of its noise.
        every: output tokens from one prediction to the next.

    Raises:
        InputError: an interval under 1, or a predictor that predicts nothing or no remaining length.
    """

    predictor: str
    seed: int
    every: int

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(f"--refresh-predictions {self.every}: give a number of tokens of at least 1")
        if self.predictor == "none":
            raise InputError("--refresh-predictions needs a --predictor, e.g. lognormal:0.5")
        if self.predictor.partition(":")[0] == "tau":
            raise InputError(
                "--refresh-predictions: tau is an order of whole requests and can't predict what is left; "
                "choose another --predictor"
            )

    def wrap(self, outputs: OutputProcessor, records: Sequence[ArrivalRecord]) -> OutputProcessor:
        """The output processor with new predictions: the tokens so far, and a guess of those that are left.

        Args:
            records: the whole workload, whose true lengths the predictor knows.
        """
        lengths = [record.target_output_tokens for record in records]
        predict = make_predictor(self.predictor, self.seed, lengths)
        assert predict is not None
        rows = {record.request_id: (record.source_row, record.target_output_tokens) for record in records}

        def repredict(request_id: str, num_output_tokens: int) -> int:
            source_row, target = rows[request_id]
            left = max(1, target - num_output_tokens)
            return num_output_tokens + predict(source_row, left, num_output_tokens)

        return RefreshedPredictions(outputs, repredict, self.every)


def refresh_of(predictor: str, seed: int, every: int | None) -> Refresh | None:
    """The refreshing of a run; None where predictions are made once."""
    return None if every is None else Refresh(predictor, seed, every)
