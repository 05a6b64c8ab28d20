"""The run directory of whatever a vLLM server serves, where nobody else keeps one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyllm.bridge.settings import BridgeSettings
from tinyllm.engine.record.manifest import Status, environment, write_manifest
from tinyllm.engine.record.workload import ArrivalRecord, write_block_hashes, write_workload
from tinyllm.engine.record.writer import LogWriter
from tinyllm.errors import InputError
from tinyllm.policy.config import SchedulerConfig

FLUSH_SECONDS = 2.0


class RunLog(LogWriter):
    """A run without a trace: its workload is what arrives, and is written before the rows that need it.

    Args:
        directory: missing or empty.

    Raises:
        InputError: it is something else, or can't be written.
    """

    def __init__(self, directory: Path, settings: BridgeSettings, config: SchedulerConfig) -> None:
        self._directory = directory
        self._records: list[ArrivalRecord] = []
        self._num_written = -1
        self._manifest: dict[str, Any] = {
            **environment(),
            "status": "running",
            "mode": "vllm",
            "seed": 0,
            "policy": {"name": settings.policy, "args": dict(settings.policy_args)},
            "config": config.to_dict(),
            "trace": {"path": None, "prefix_block_size": None},
        }
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if any(directory.iterdir()):
                raise InputError(f"log {directory}: is not empty; give another directory")
            write_manifest(directory, self._manifest)
        except OSError as error:
            raise InputError(f"log {directory}: {error.strerror or error}; give another directory") from error
        super().__init__(directory, flush_seconds=FLUSH_SECONDS)

    def arrived(self, record: ArrivalRecord) -> None:
        """A request joined the workload."""
        self._records.append(record)
        if self._manifest["status"] != "running":
            self._set_status("running")

    def flush(self) -> None:
        """Write what is buffered."""
        if self._num_written != len(self._records):
            write_workload(self._directory / "workload.parquet", self._records)
            self._num_written = len(self._records)
        super().flush()

    def close(self, num_steps: int, block_hashes: Mapping[str, Sequence[bytes]]) -> None:
        """Complete the run, whose recorder is closed; if more arrives, it is opened again."""
        if self._manifest["config"]["enable_prefix_caching"]:
            write_block_hashes(self._directory / "block_hashes.parquet", block_hashes)
        self._manifest["num_steps"] = num_steps
        self._set_status("complete")

    def _set_status(self, status: Status) -> None:
        self._manifest["status"] = status
        write_manifest(self._directory, self._manifest)
