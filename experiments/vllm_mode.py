"""`replay --mode vllm`: the same policy inside vLLM, a child process in its own environment, open loop."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from experiments.corpus import corpus_text
from experiments.options import ReplayOptions
from experiments.progress import Report
from experiments.real import RealMode
from experiments.run_directory import BLOCK_HASHES_FILE
from experiments.workload import Workload
from tinyllm.bridge.environment import child_environment, vllm_python
from tinyllm.bridge.job import ReplayJob
from tinyllm.bridge.options import VLLM_DEFAULTS
from tinyllm.bridge.support import check_policy
from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.engine.record.workload import request_from
from tinyllm.engine.record.writer import LogWriter
from tinyllm.engine.tokenizer import Tokenizer
from tinyllm.errors import IncompleteRunError, InputError
from tinyllm.models.config import ModelConfig
from tinyllm.policy.base import SchedulingPolicy
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.scheduler import Scheduler
from traces.prompts import PromptMaker

BLOCK_SIZE: Final = 32
"""The smallest for which vLLM has attention on a CPU."""

_ADMISSIONS: Final = ("first-chunk", "prompt-fits")
_OF_VLLM: Final = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "num_gpu_blocks",
    "max_model_len",
    "long_prefill_token_threshold",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "watermark",
    "admission",
    *VLLM_DEFAULTS,
)
"""Options that vLLM has, or always keeps to."""


class VLLMMode(RealMode):
    """A real model under vLLM on this machine's CPU.

    Raises:
        InputError: no vLLM, no or a wrong `--model`, or an option that vLLM does not have.
    """

    def __init__(self, options: ReplayOptions) -> None:
        super().__init__(replace(options, block_size=options.block_size or BLOCK_SIZE))
        self._python = vllm_python("--mode vllm", options.vllm_python)
        if options.device != "cpu":
            raise InputError(f"--mode vllm: --device {options.device} is not supported, only cpu")
        if options.refresh_predictions is not None:
            raise InputError("--mode vllm does not refresh predictions: leave out --refresh-predictions")

    def config(self, shares_prefixes: bool) -> SchedulerConfig:
        """What was given, else what vLLM does by itself, else what follows from the checkpoint and the memory."""
        given = {**VLLM_DEFAULTS, **self._options.engine_options()}
        config = super().config(shares_prefixes)
        config = replace(config, **{name: given[name] for name in VLLM_DEFAULTS})
        if config.block_size % BLOCK_SIZE:
            raise InputError(
                f"--mode vllm: --block-size {config.block_size}: vLLM's attention on a CPU takes multiples of "
                f"{BLOCK_SIZE}"
            )
        _check(config)
        # vLLM wants room for one request of the whole context.
        pool = config.num_gpu_blocks * config.block_size
        if self._options.max_model_len is not None and self._options.max_model_len > pool:
            raise InputError(
                f"--mode vllm: --max-model-len {self._options.max_model_len} does not fit the pool of {pool} tokens"
            )
        return replace(config, max_model_len=min(config.max_model_len or pool, pool))

    def facts(self) -> dict[str, Any]:
        """What the manifest says of model and device."""
        return super().facts() | {"attention": "vllm"}

    def make_run(self, workload: Workload, config: SchedulerConfig, policy: SchedulingPolicy) -> VLLMReplay:  # type: ignore[override]
        """A run that is ready to start: the model is loaded, the prompts are made."""
        if workload.contains_history:
            raise InputError("--mode vllm does not continue conversations: give --sessions open")
        check_policy(policy)
        return VLLMReplay(self._python, self._options, workload, config, policy)


def _check(config: SchedulerConfig) -> None:
    """Refuse what vLLM does not have."""
    for option in fields(SchedulerConfig):
        if option.name not in _OF_VLLM and getattr(config, option.name) != option.default:
            raise InputError(f"--mode vllm has no --{option.name.replace('_', '-')}: leave it out")
    if config.admission not in _ADMISSIONS:
        raise InputError(f"--mode vllm: --admission {config.admission}: choose {' or '.join(_ADMISSIONS)}")
    for name in ("cap_lone_prefill", "register_blocks"):
        if getattr(config, name) != VLLM_DEFAULTS[name]:
            raise InputError(f"--mode vllm keeps to its own --{name.replace('_', '-')}: leave it out")


class VLLMReplay:
    """One run inside vLLM, whose child process writes the log.

    Args:
        python: of the environment that has vLLM.
        options: with a model.
        workload: its times count from the start of `run`.
        config, policy: as vLLM is to have them.
    """

    def __init__(
        self,
        python: Path,
        options: ReplayOptions,
        workload: Workload,
        config: SchedulerConfig,
        policy: SchedulingPolicy,
    ) -> None:
        self.clients = workload.clients()
        # Nothing runs here: they hold what a run is asked for afterwards.
        self.scheduler = Scheduler(config, policy)
        self.core = EngineCore(self.scheduler, TargetLengthProcessor())
        self.now = 0
        self._records = {record.request_id: record for record in workload.records}
        self._scratch = tempfile.TemporaryDirectory(prefix="tinyllm-vllm-")
        self._errors = Path(self._scratch.name, "stderr.txt")
        job = Path(self._scratch.name, "job.pickle")
        _job(options, workload, config).write(job)
        with self._errors.open("w") as errors:
            self._child = subprocess.Popen(
                [python, "-m", "tinyllm.bridge.replay_worker", job],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=child_environment(),
                # An interrupt is for this process, which tells the child when to stop.
                start_new_session=True,
            )
        next(self._answers())

    def run(self, writer: LogWriter, progress: Report) -> None:
        """Let the child serve every request; returns when all have ended or nothing can go on.

        Args:
            writer: not used, the child has its own.
            progress: told of the run's clock and the requests that have ended; may raise to end the run.
        """
        self._tell("go")
        for answer in self._answers():
            self.now = answer["now"]
            if "done" in answer:
                self._end(answer)
                return
            progress(self.now, answer["ended"])

    def close(self, directory: Path) -> None:
        """Let the child complete the log, also of a run that was cut short."""
        if self._child.poll() is None:
            with suppress(BrokenPipeError):
                self._tell("stop")
            for answer in self._answers():
                if "done" in answer:
                    self._end(answer)
                    break
        self._child.wait()
        self._scratch.cleanup()

    def _end(self, answer: dict[str, Any]) -> None:
        self.now = answer["now"]
        self.core.num_steps = answer["num_steps"]
        for request_id in answer["unfinished"]:
            self.scheduler.add_request(request_from(self._records[request_id]), self.now)

    def _tell(self, line: str) -> None:
        assert self._child.stdin is not None
        print(line, file=self._child.stdin, flush=True)

    def _answers(self) -> Iterator[dict[str, Any]]:
        """What the child says, line by line.

        Raises:
            InputError: it refuses an option.
            IncompleteRunError: it ended without a last word.
        """
        assert self._child.stdout is not None
        for line in iter(self._child.stdout.readline, ""):
            answer: dict[str, Any] = json.loads(line)
            if "error" in answer:
                raise InputError(answer["error"])
            yield answer
        code = self._child.wait()
        if code < 0:
            raise IncompleteRunError(f"--mode vllm: its process was killed by signal {-code}")
        if code > 0:
            last = self._errors.read_text(errors="replace").strip().splitlines()[-1:]
            raise IncompleteRunError(
                f"--mode vllm: its process ended with exit code {code}: {' '.join(last)}"
            )


def _job(options: ReplayOptions, workload: Workload, config: SchedulerConfig) -> ReplayJob:
    assert options.model is not None
    tokenizer = Tokenizer.from_directory(options.model, ModelConfig.from_directory(options.model).vocab_size)
    if tokenizer is None:
        raise InputError(f"--model {options.model}: has no tokenizer.json, from which prompts are made")
    maker = PromptMaker(
        tokenizer.encode(corpus_text(options.corpus)), options.seed, workload.prefix_block_size
    )
    return ReplayJob(
        model=str(options.model.absolute()),
        dtype=options.dtype or "float32",
        config=config,
        policy=options.policy,
        policy_args=dict(options.policy_args),
        clients=workload.clients(),
        prompts={record.request_id: maker.token_ids(record) for record in workload.records},
        ignore_eos=options.eos == "ignore",
        log=options.out.absolute(),
        block_hashes=options.out.absolute() / BLOCK_HASHES_FILE,
        seed=options.seed,
    )
