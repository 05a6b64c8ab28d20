"""What an engine is asked to do, and what it answers: plain records that go through a pipe as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class BenchRequest:
    """One request.

    Attributes:
        request_id: unique in its job.
        prompt_token_ids: the prompt.
        max_tokens: output tokens; exactly so many where the job ignores EOS.
        arrival_s: seconds from the job's start at which it is handed over, whatever became of the others.
    """

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    arrival_s: float = 0.0


@dataclass(frozen=True)
class Job:
    """Requests to serve greedily from an idle engine; ends when all have ended.

    Attributes:
        ignore_eos: for measurements of speed; kept (False) for those of agreement.
    """

    requests: list[BenchRequest]
    ignore_eos: bool = True

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        values = json.loads(text)
        return cls([BenchRequest(**each) for each in values["requests"]], values["ignore_eos"])


@dataclass(frozen=True)
class Served:
    """What became of one request. Times are seconds from the job's start, on the engine process's monotonic clock.

    Attributes:
        submitted_s: when it was really handed over.
        first_scheduled_s: when it was first scheduled; None where the engine does not tell.
        token_times_s: when each output token was there.
        token_ids: the output, an EOS that ended it included.
        finish_reason: `length`, `stop`, or None with an `error`.
    """

    request_id: str
    submitted_s: float
    first_scheduled_s: float | None
    token_times_s: list[float]
    token_ids: list[int]
    finish_reason: str | None
    error: str | None = None


@dataclass(frozen=True)
class Memory:
    """Bytes of the engine's process and its children.

    Attributes:
        rss_after_imports: resident after imports and one compiled kernel, before the model is loaded.
        weights: of the parameters; None where the engine does not tell.
        kv_pool: of the KV cache's allocation; None likewise.
        peak_rss: the largest resident size so far.
    """

    rss_after_imports: int
    weights: int | None
    kv_pool: int | None
    peak_rss: int


@dataclass(frozen=True)
class JobResult:
    """The answer to a job."""

    served: list[Served]
    memory: Memory
    details: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> JobResult:
        values = json.loads(text)
        served = [Served(**each) for each in values["served"]]
        return cls(served, Memory(**values["memory"]), values["details"])
