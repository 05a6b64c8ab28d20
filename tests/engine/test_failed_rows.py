"""A row that the runner fails ends alone, and the log counts no token for it."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from experiments.smoke import CollectTokens
from tinyllm.engine.core import EngineCore
from tinyllm.engine.record.recorder import LogRecorder
from tinyllm.engine.record.workload import ArrivalRecord, request_from
from tinyllm.engine.record.writer import LogWriter
from tinyllm.engine.runner import FakeRunner, StepResult
from tinyllm.policy.batch import Outcome, ScheduledBatch
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.fcfs import FCFS
from tinyllm.policy.request import FinishReason
from tinyllm.policy.scheduler import Scheduler


class FailingRunner(FakeRunner):
    """Fails the row of request `bad` once it has `after` output tokens."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def run(self, batch: ScheduledBatch) -> StepResult:
        result = super().run(batch)
        failed = [r.request_id == "bad" and r.num_output_tokens == self.after for r in batch.requests]
        return StepResult(
            [None if bad else token for token, bad in zip(result.token_ids, failed, strict=True)],
            errors=["logits are not finite" if bad else None for bad in failed],
        )


class FailingTokens(CollectTokens):
    """Ends a row without a token by an error."""

    def process(self, batch: ScheduledBatch, result: StepResult | None) -> list[Outcome | None]:
        assert result is not None
        return [
            Outcome(0, FinishReason.ERROR)
            if token is None
            else Outcome(1, FinishReason.LENGTH if r.num_output_tokens + 1 == r.max_tokens else None)
            for r, token in zip(batch.requests, result.token_ids, strict=True)
        ]


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_failed_row_is_logged_with_its_error_and_without_a_token(tmp_path: Path, after: int) -> None:
    scheduler = Scheduler(SchedulerConfig(num_gpu_blocks=50, block_size=4), FCFS())
    writer = LogWriter(tmp_path)
    core = EngineCore(scheduler, FailingTokens(), LogRecorder(writer, scheduler))
    runner = FailingRunner(after)
    for name in ("good", "bad"):
        record = ArrivalRecord(name, 0, 0, 5, 6, 6)
        assert core.add_request(record, request_from(record), 0) is None
        runner.add(name, [1, 2, 3, 4, 5], None)
    clock = iter(range(10**6)).__next__
    while core.step(runner, clock) is not None:
        pass
    core.recorder.close(clock())

    rows = {row["request_id"]: row for row in pq.read_table(tmp_path / "requests").to_pylist()}
    assert (rows["bad"]["finish_reason"], rows["bad"]["error"]) == ("error", "logits are not finite")
    assert (rows["bad"]["output_tokens"], rows["good"]["output_tokens"]) == (after, 6)
    assert (rows["bad"]["first_token"] is None) == (after == 0)
    assert rows["good"]["error"] is None
    sampled = dict.fromkeys(rows, 0)
    for span in pq.read_table(tmp_path / "spans").to_pylist():
        sampled[span["request_id"]] += span["sampled"]
    assert sampled == {"bad": after, "good": 6}
    assert sum(pq.read_table(tmp_path / "steps")["sampled_tokens"].to_pylist()) == 6 + after
