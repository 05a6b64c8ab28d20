"""What a replay inside vLLM is asked to do: handed to the child in a file."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyllm.engine.clients import Clients
from tinyllm.policy.config import SchedulerConfig


@dataclass(frozen=True)
class ReplayJob:
    """A replay.

    Attributes:
        model, dtype: the local checkpoint, and its numbers.
        config: ours; vLLM is set to the same.
        policy, policy_args: of ours.
        clients: who sends what when.
        prompts: token ids, by request id.
        ignore_eos: whether outputs have the trace's lengths, else the model's.
        log: run directory whose tables are written.
        block_hashes: file for what the prefix cache was keyed by.
        seed: of vLLM's sampler.
    """

    model: str
    dtype: str
    config: SchedulerConfig
    policy: str
    policy_args: dict[str, Any]
    clients: Clients
    prompts: dict[str, list[int]]
    ignore_eos: bool
    log: Path
    block_hashes: Path
    seed: int

    def write(self, path: Path) -> None:
        """Write it for a child of ours."""
        path.write_bytes(pickle.dumps(self))

    @classmethod
    def read(cls, path: Path) -> ReplayJob:
        """Read what `write` wrote: pickles run code, so nobody else's."""
        job: ReplayJob = pickle.loads(path.read_bytes())
        return job
