"""A replay inside vLLM, run by the Python of its environment: `python -m tinyllm.bridge.replay_worker JOB`.

Standard output has a JSON object a line: `{"ready": version}` once the model is loaded, then, after a line on standard
input, `{"now": ns, "ended": n}` again and again, and at the end `{"done": true, …}`; or `{"error": …}` for a wrong
option. A further line on standard input ends the run between two steps.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tinyllm.bridge.job import ReplayJob
from tinyllm.bridge.options import num_blocks, scheduler_options
from tinyllm.bridge.requests import EXTRA_ARGS
from tinyllm.bridge.versions import check_version
from tinyllm.engine.record.workload import ArrivalRecord, request_from, write_block_hashes
from tinyllm.engine.record.writer import LogWriter
from tinyllm.engine.submitter import Submitter
from tinyllm.errors import TinyLLMError
from tinyllm.policy.admission import refusal
from tinyllm.policy.registry import make_policy

SECONDS_BETWEEN_REPORTS: Final = 0.2
FLUSH_SECONDS: Final = 2.0


class Replay:
    """One run, from a job to its log."""

    def __init__(self, job: ReplayJob) -> None:
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        from tinyllm.bridge.scheduler import PolicyScheduler

        self._job = job
        config = job.config
        arguments = EngineArgs(
            model=job.model,
            dtype=job.dtype,
            seed=job.seed,
            max_model_len=config.max_model_len,
            block_size=config.block_size,
            num_gpu_blocks_override=num_blocks(config),
            enable_prefix_caching=config.enable_prefix_caching,
            enforce_eager=True,
            skip_tokenizer_init=True,
            disable_log_stats=True,
            scheduler_cls=PolicyScheduler,
            **scheduler_options(config),
        )
        self._engine = LLMEngine.from_engine_args(arguments)
        self._scheduler = self._engine.engine_core.engine_core.scheduler
        self._num_ended = 0
        self._warm_up()

    def run(self, answers: Any, stopped: threading.Event) -> None:
        """Serve every request at its time; returns when all have ended, nothing can go on, or it is told to stop."""
        job, scheduler = self._job, self._scheduler
        policy = make_policy(job.policy, job.policy_args)
        scheduler.attach(policy, LogWriter(job.log, flush_seconds=FLUSH_SECONDS))
        submitter = Submitter(job.clients, scheduler.clock)
        submitter.start()
        reported = time.monotonic()
        try:
            while not stopped.is_set():
                for due, handed_ns in submitter.take(scheduler.clock()):
                    self._take_up(due.record, due.aborts, handed_ns, submitter)
                ran = self._step(submitter)
                if not ran and not submitter.wait():
                    break
                if time.monotonic() - reported >= SECONDS_BETWEEN_REPORTS:
                    reported = time.monotonic()
                    _say(answers, now=scheduler.clock(), ended=self._num_ended)
        finally:
            submitter.stop()
            now = scheduler.clock()
            unfinished = [view.request_id for view in scheduler.following.unfinished()]
            hashes = scheduler.all_block_hashes()
            scheduler.core.recorder.close(now)
            if job.config.enable_prefix_caching:
                write_block_hashes(job.block_hashes, hashes)
        _say(answers, done=True, now=now, num_steps=scheduler.core.num_steps, unfinished=unfinished)

    def _take_up(self, record: ArrivalRecord, aborts: bool, handed_ns: int, submitter: Submitter) -> None:
        name = record.request_id
        if aborts:
            self._engine.abort_request([name])
            self._ended(name, self._scheduler.clock(), submitter)
            return
        reason = refusal(self._job.config, request_from(record))
        if reason is not None:
            self._scheduler.core.recorder.rejected(record, handed_ns, reason, self._scheduler.clock())
            self._ended(name, handed_ns, submitter)
            return
        given = {key: value for key, value in asdict(record).items() if value is not None}
        for key in ("prompt_tokens", "prefix_ids"):
            given.pop(key, None)
        max_tokens = record.target_output_tokens if self._job.ignore_eos else record.max_tokens
        self._add(name, self._job.prompts.pop(name), max_tokens, {"submitted_ns": handed_ns, **given})

    def _add(self, name: str, prompt: list[int], max_tokens: int, given: dict[str, Any]) -> None:
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=self._job.ignore_eos,
            detokenize=False,
            extra_args={EXTRA_ARGS: given},
        )
        self._engine.add_request(name, {"prompt_token_ids": prompt}, params)

    def _step(self, submitter: Submitter) -> bool:
        """One step; False if nothing could run."""
        if not self._engine.has_unfinished_requests():
            return False
        num_steps = self._scheduler.core.num_steps
        for output in self._engine.step():
            if output.finished:
                self._ended(output.request_id, self._scheduler.step_end, submitter)
        return bool(self._scheduler.core.num_steps > num_steps)

    def _ended(self, name: str, end_ns: int, submitter: Submitter) -> None:
        self._num_ended += 1
        submitter.end(name, end_ns)

    def _warm_up(self) -> None:
        """One throwaway request, of which the run's policy, log and cache never hear."""
        prompt = next(iter(self._job.prompts.values()))[: self._job.config.max_num_batched_tokens]
        self._add("warm-up", prompt, 2, {})
        while self._engine.has_unfinished_requests():
            self._engine.step()
        self._engine.reset_prefix_cache()


def _say(answers: Any, **facts: Any) -> None:
    print(json.dumps(facts), file=answers, flush=True)


def _await_stop(stopped: threading.Event) -> None:
    sys.stdin.readline()
    stopped.set()


def main(path: str) -> int:
    """Run the job of a file; return the exit code."""
    # vLLM prints to standard output, which belongs to the answers here.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        version = check_version()
        replay = Replay(ReplayJob.read(Path(path)))
        _say(answers, ready=version)
        if not sys.stdin.readline():
            return 0
        stopped = threading.Event()
        threading.Thread(target=_await_stop, args=(stopped,), daemon=True).start()
        replay.run(answers, stopped)
    except TinyLLMError as error:
        _say(answers, error=str(error))
        return error.exit_code
    return 0


if __name__ == "__main__":
    # Not waiting for the thread that reads, and vLLM's own, to end.
    os._exit(main(*sys.argv[1:]))
