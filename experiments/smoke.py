"""`make smoke`: the engine end to end on the deterministic fake runner, in seconds and without torch."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from experiments.run_directory import RunDirectory
from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import OutputProcessor
from tinyllm.engine.record.reader import read_run
from tinyllm.engine.record.recorder import LogRecorder
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.engine.runner import FakeRunner, StepResult
from tinyllm.policy.batch import Outcome, ScheduledBatch
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.integrity import check_integrity
from tinyllm.policy.registry import make_policy
from tinyllm.policy.request import FinishReason, Request
from tinyllm.policy.scheduler import Scheduler


class CollectTokens(OutputProcessor):
    """Keeps every request's tokens, and ends it at `max_tokens`."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}

    def process(self, batch: ScheduledBatch, result: StepResult | None) -> list[Outcome | None]:
        assert result is not None
        token_ids = iter(result.token_ids)
        outcomes: list[Outcome | None] = []
        for request, samples in zip(batch.requests, batch.samples, strict=True):
            if not samples:
                outcomes.append(None)
                continue
            token = next(token_ids)
            assert token is not None
            tokens = self.tokens.setdefault(request.request_id, [])
            tokens.append(token)
            done = len(tokens) == request.max_tokens
            outcomes.append(Outcome(1, FinishReason.LENGTH if done else None))
        return outcomes

    def remove(self, request_id: str) -> None:
        """The tokens are what the caller wants."""


def generate(
    prompts: Sequence[list[int]], max_tokens: int, config: SchedulerConfig, policy: str, directory: Path
) -> dict[str, list[int]]:
    """Serve prompts on the fake runner with a log, checking every invariant after every step."""
    scheduler = Scheduler(config, make_policy(policy))
    outputs, runner = CollectTokens(), FakeRunner()
    run = RunDirectory(directory, {"mode": "real", "device": "fake", "config": config.to_dict()})
    recorder = LogRecorder(run.open_log(), scheduler)
    core = EngineCore(scheduler, outputs, recorder)
    records = [
        ArrivalRecord(f"r{i}", i, 0, len(prompt), max_tokens, max_tokens) for i, prompt in enumerate(prompts)
    ]
    run.write_workload(records)
    clock = iter(range(1, 1 << 40, 1000)).__next__
    for record, prompt in zip(records, prompts, strict=True):
        runner.add(record.request_id, prompt, None)
        request = Request(record.request_id, record.prompt_tokens, record.max_tokens)
        refused = core.add_request(record, request, 0)
        assert refused is None, refused
    while core.step(runner, clock) is not None:
        check_integrity(scheduler)
    recorder.close(clock())
    run.finish("complete")
    return outputs.tokens


def smoke(directory: Path) -> str:
    """The same prompts in a pool with room for all and in one that preempts: every token must be equal.

    Raises:
        AssertionError: it was not.
    """
    prompts = [[(7 * i + j) % 1000 for j in range(5 + 11 * i)] for i in range(12)]
    roomy = SchedulerConfig(num_gpu_blocks=1000, block_size=4, max_num_batched_tokens=64)
    tight = SchedulerConfig(num_gpu_blocks=40, block_size=4, max_num_batched_tokens=48)
    expected = generate(prompts, 20, roomy, "fcfs", directory / "roomy")
    for policy in ("fcfs", "srpt", "vtc", "priority"):
        tokens = generate(prompts, 20, tight, policy, directory / policy)
        assert tokens == expected, f"{policy} changed a token"
    preemptions = int(read_run(directory / "fcfs").requests["preemptions"].sum())
    assert preemptions > 0, "the tight pool was not tight"
    return f"{len(prompts)} requests, {preemptions} preemptions under fcfs, equal tokens under every policy"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(f"smoke: {smoke(Path(scratch) / 'run')}", file=sys.stdout)
