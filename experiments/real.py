"""`replay --mode real`: the same policy objects on a real model, open loop on a monotonic clock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from experiments.corpus import corpus_text
from experiments.options import ReplayOptions
from experiments.progress import Report
from experiments.run_directory import BLOCK_HASHES_FILE
from experiments.submitter import Submitter
from tinyllm.engine.core import EngineCore
from tinyllm.engine.real import RealEngine, real_config
from tinyllm.engine.record.recorder import LogRecorder
from tinyllm.engine.record.workload import ArrivalRecord, request_from, write_table
from tinyllm.engine.record.writer import LogWriter
from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.engine.token_output import TokenOutputProcessor
from tinyllm.errors import InputError
from tinyllm.policy.base import SchedulingPolicy
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.fcfs import FCFS
from tinyllm.policy.scheduler import Scheduler
from traces.prompts import PromptMaker


class RealMode:
    """A real model on a real device.

    Raises:
        InputError: no or a wrong `--model`, or a wrong option; nothing large was loaded then.
    """

    flush_seconds: float | None = 2.0
    can_lag = True

    def __init__(self, options: ReplayOptions) -> None:
        if options.model is None:
            raise InputError(
                "--mode real needs --model DIR, a local checkpoint (tinyllm get-model smollm2-135m DIR)"
            )
        if options.eos not in ("ignore", "stop"):
            raise InputError(f"--eos {options.eos}: choose ignore (the trace's lengths) or stop")
        self._options = options
        self._model = options.model

    def config(self, has_prefix_ids: bool) -> SchedulerConfig:
        """What was given, else what follows from the checkpoint and the device's memory."""
        options = self._options
        chosen = {"enable_prefix_caching": has_prefix_ids, **options.engine_options()}
        return real_config(
            self._model,
            device=options.device,
            dtype=options.dtype or "float32",
            gpu_memory_utilization=options.gpu_memory_utilization,
            **chosen,
        )

    def facts(self) -> dict[str, Any]:
        """What the manifest says of model and device."""
        options = self._options
        return {
            "device": options.device,
            "model": str(self._model),
            "dtype": options.dtype or "float32",
            "attention": options.attention,
            "eos": options.eos,
        }

    def make_run(
        self,
        records: list[ArrivalRecord],
        config: SchedulerConfig,
        policy: SchedulingPolicy,
        prefix_block_size: int | None,
    ) -> RealReplay:
        """A run that is ready to start: the model is loaded, the prompts are made."""
        return RealReplay(self._options, records, config, policy, prefix_block_size)


class RealReplay:
    """One real run, from a workload to its log.

    Args:
        options: with a model.
        records: the workload; arrivals count from the start of `run`.
        config, policy: of the scheduler; the prefix cache is in `config`.
        prefix_block_size: tokens that one prefix id stands for.
    """

    def __init__(
        self,
        options: ReplayOptions,
        records: Sequence[ArrivalRecord],
        config: SchedulerConfig,
        policy: SchedulingPolicy,
        prefix_block_size: int | None,
    ) -> None:
        assert options.model is not None
        self._records = records
        self._ignore_eos = options.eos == "ignore"
        self._engine = RealEngine(
            options.model,
            config,
            policy,
            device=options.device,
            dtype=options.dtype or "float32",
            attention=options.attention,
            seed=options.seed,
        )
        self.core, self.scheduler = self._engine.core, self._engine.scheduler
        self._block_hashes: dict[str, list[bytes]] = {}
        self._prompts = self._make_prompts(options, prefix_block_size)
        self._warm_up()
        self._start = time.monotonic_ns()

    @property
    def now(self) -> int:
        """ns since the start of the run."""
        return time.monotonic_ns() - self._start

    def run(self, writer: LogWriter, progress: Report) -> None:
        """Serve every request at its time; returns when all have ended or nothing can go on.

        Args:
            progress: told of the run's clock and the requests that have ended; may raise to end the run.
        """
        self.core.recorder = LogRecorder(writer, self.scheduler)
        self._start = time.monotonic_ns()
        submitter = Submitter(self._records, lambda: self.now)
        submitter.start()
        num_ended = 0
        try:
            while True:
                now = self.now
                for record, submitted in submitter.take(now):
                    num_ended += self._submit(record, now, submitted) is not None
                finished = self._engine.step(lambda: self.now, now)
                if finished is None:
                    if not submitter.wait():
                        return
                else:
                    for request in finished:
                        self._keep(request.request_id)
                    num_ended += len(finished)
                progress(self.now, num_ended)
        finally:
            submitter.stop()

    def close(self, directory: Path) -> None:
        """Complete the log, also of a run that was cut short."""
        outputs = self._engine.outputs
        for request in self.scheduler.unfinished():
            self._block_hashes[request.request_id] = outputs.get(request.request_id).block_hashes
        self.core.recorder.close(self.now)
        if self.scheduler.config.enable_prefix_caching:
            self._write_block_hashes(directory / BLOCK_HASHES_FILE)

    def _write_block_hashes(self, path: Path) -> None:
        """Write what the prefix cache was keyed by, without which a run can't be re-simulated."""
        columns = {
            "request_id": list(self._block_hashes),
            "block_hashes": list(self._block_hashes.values()),
        }
        schema = pa.schema([("request_id", pa.string()), ("block_hashes", pa.list_(pa.binary()))])
        write_table(path, pa.table(columns, schema=schema))

    def _submit(self, record: ArrivalRecord, now: int, submitted: int) -> str | None:
        params = SamplingParams(
            max_tokens=record.target_output_tokens if self._ignore_eos else record.max_tokens,
            temperature=0.0,
            ignore_eos=self._ignore_eos,
        )
        return self._engine.add_request(record, self._prompts[record.request_id], params, now, submitted)

    def _keep(self, request_id: str) -> None:
        output = self._engine.outputs.take(request_id)
        self._block_hashes[request_id] = output.block_hashes

    def _make_prompts(self, options: ReplayOptions, prefix_block_size: int | None) -> dict[str, list[int]]:
        tokenizer = self._engine.tokenizer
        if tokenizer is None:
            raise InputError(f"--model {options.model}: has no tokenizer.json, from which prompts are made")
        text = corpus_text(options.corpus)
        maker = PromptMaker(tokenizer.encode(text), options.seed, prefix_block_size)
        return {record.request_id: maker.token_ids(record) for record in self._records}

    def _warm_up(self) -> None:
        """One throwaway request: kernels are compiled and pages touched before the clock starts.

        It has a scheduler of its own, so that the run's policy, pool and counters never hear of it.
        """
        config = self.scheduler.config
        prompt = next(iter(self._prompts.values()))[: config.max_num_batched_tokens]
        record = ArrivalRecord("warm-up", -1, 0, len(prompt), 3, 3)
        params = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
        outputs = TokenOutputProcessor((), len(prompt) + 3)
        core = EngineCore(Scheduler(config, FCFS()), outputs)
        if core.add_request(record, request_from(record), 0) is not None:
            return
        outputs.add(record.request_id, prompt, params)
        self._engine.runner.add(record.request_id, prompt, params)
        while core.step(self._engine.runner, time.monotonic_ns) is not None:
            pass
