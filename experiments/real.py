"""`replay --mode real`: the same policy objects on a real model, open loop on a monotonic clock."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from experiments.corpus import corpus_text
from experiments.options import ReplayOptions
from experiments.progress import Report
from experiments.run_directory import BLOCK_HASHES_FILE
from experiments.workload import Workload
from tinyllm.engine.clients import Due
from tinyllm.engine.core import EngineCore
from tinyllm.engine.real import RealEngine, real_config
from tinyllm.engine.record.recorder import LogRecorder
from tinyllm.engine.record.workload import ArrivalRecord, request_from, write_block_hashes
from tinyllm.engine.record.writer import LogWriter
from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.engine.sessions import Histories
from tinyllm.engine.submitter import Submitter
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
                f"--mode {options.mode} needs --model DIR, a local checkpoint (tinyllm get-model smollm2-135m DIR)"
            )
        if options.eos not in ("ignore", "stop"):
            raise InputError(f"--eos {options.eos}: choose ignore (the trace's lengths) or stop")
        if options.eos == "stop" and options.refresh_predictions is not None:
            raise InputError(
                "--refresh-predictions needs --eos ignore: how long outputs get is not known else"
            )
        self._options = options
        self._model = options.model

    def config(self, shares_prefixes: bool) -> SchedulerConfig:
        """What was given, else what follows from the checkpoint and the device's memory."""
        options = self._options
        chosen = {"enable_prefix_caching": shares_prefixes, **options.engine_options()}
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

    def make_run(self, workload: Workload, config: SchedulerConfig, policy: SchedulingPolicy) -> RealReplay:
        """A run that is ready to start: the model is loaded, the prompts are made."""
        return RealReplay(self._options, workload, config, policy)


class RealReplay:
    """One real run, from a workload to its log.

    Args:
        options: with a model.
        workload: its times count from the start of `run`.
        config, policy: of the scheduler; the prefix cache is in `config`.
    """

    def __init__(
        self,
        options: ReplayOptions,
        workload: Workload,
        config: SchedulerConfig,
        policy: SchedulingPolicy,
    ) -> None:
        assert options.model is not None
        self.clients = workload.clients()
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
        self.core.output_processor = workload.predicting(self._engine.outputs)
        self._submitter: Submitter | None = None
        self._num_ended = 0
        self._block_hashes: dict[str, list[bytes]] = {}
        self._histories: Histories[int] = Histories(workload.turns)
        self._prompts = self._make_prompts(options, workload)
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
        submitter = self._submitter = Submitter(self.clients, lambda: self.now)
        submitter.start()
        try:
            while True:
                now = self.now
                for due, handed_ns in submitter.take(now):
                    self._take_up(due, now, handed_ns)
                finished = self._engine.step(lambda: self.now, now)
                for request in self.core.dropped:
                    self._ended(request.request_id, now)
                for request in finished or ():
                    self._ended(request.request_id, self.core.step_end)
                if finished is None and not submitter.wait():
                    return
                progress(self.now, self._num_ended)
        finally:
            submitter.stop()

    def close(self, directory: Path) -> None:
        """Complete the log, also of a run that was cut short."""
        outputs = self._engine.outputs
        for request in self.scheduler.unfinished():
            self._block_hashes[request.request_id] = outputs.get(request.request_id).block_hashes
        self.core.recorder.close(self.now)
        if self.scheduler.config.enable_prefix_caching:
            write_block_hashes(directory / BLOCK_HASHES_FILE, self._block_hashes)

    def _take_up(self, due: Due, now: int, handed_ns: int) -> None:
        name = due.record.request_id
        if due.aborts:
            if self._engine.abort(name, now):
                self._ended(name, now)
        elif self._submit(due.record, now, handed_ns) is not None:
            self._told_of_end(name, handed_ns)

    def _submit(self, record: ArrivalRecord, now: int, submitted: int) -> str | None:
        params = SamplingParams(
            max_tokens=record.target_output_tokens if self._ignore_eos else record.max_tokens,
            temperature=0.0,
            ignore_eos=self._ignore_eos,
        )
        prompt = self._prompt(record, submitted)
        refused = self._engine.add_request(record, prompt, params, now, submitted)
        if refused is None:
            self._histories.start(record.request_id, prompt)
        return refused

    def _prompt(self, record: ArrivalRecord, submitted: int) -> list[int]:
        """The prompt that was made for the request; where it contains a history, that takes the first tokens."""
        own = self._prompts.pop(record.request_id)
        inherited = self._histories.inherit(record.request_id, submitted)
        if inherited is None:
            return own
        return [*inherited.content[: len(own)], *own[len(inherited.content) :]]

    def _ended(self, request_id: str, end_ns: int) -> None:
        output = self._engine.outputs.take(request_id)
        self._block_hashes[request_id] = output.block_hashes
        self._histories.end(request_id, output.token_ids, end_ns)
        self._told_of_end(request_id, end_ns)

    def _told_of_end(self, request_id: str, end_ns: int) -> None:
        assert self._submitter is not None
        self._num_ended += 1
        self._submitter.end(request_id, end_ns)

    def _make_prompts(self, options: ReplayOptions, workload: Workload) -> dict[str, list[int]]:
        tokenizer = self._engine.tokenizer
        if tokenizer is None:
            raise InputError(f"--model {options.model}: has no tokenizer.json, from which prompts are made")
        text = corpus_text(options.corpus)
        maker = PromptMaker(tokenizer.encode(text), options.seed, workload.prefix_block_size)
        return {record.request_id: maker.token_ids(record) for record in workload.records}

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
