"""`tinyllm replay`: a trace, a policy and an engine in, an event log out."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from analysis.summary import summarize
from experiments.interrupt import StopRequestedError, between_steps
from experiments.options import ReplayOptions
from experiments.progress import Report, Reporter, no_progress
from experiments.run_directory import RunDirectory, check_free
from experiments.sessions import check_options, session_facts, turn_facts
from experiments.workload import Workload, build_workload, load_trace, slo_ns
from tinyllm.engine.clients import Clients
from tinyllm.engine.core import EngineCore
from tinyllm.engine.record.reader import read_run
from tinyllm.engine.record.workload import NS, ArrivalRecord
from tinyllm.engine.record.writer import LogWriter
from tinyllm.errors import IncompleteRunError, InputError
from tinyllm.policy.admission import refusal
from tinyllm.policy.base import SchedulingPolicy
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.explain import waits_for
from tinyllm.policy.registry import make_policy
from tinyllm.policy.request import Request
from tinyllm.policy.scheduler import Scheduler
from traces.export import provenance_dict
from traces.schema import Trace


@dataclass(frozen=True)
class ReplayResult:
    """What a replay did.

    Attributes:
        directory: the run directory.
        rows_in, dropped: rows of the trace, and how many of them the transforms left out, by reason.
        num_requests: rows that were submitted.
        num_steps: engine steps.
        clock_s: time on the run's clock, seconds.
        run_time_s: wall time from building the pool to the closed log, seconds.
        warnings: what the trace's reader should know.
    """

    directory: Path
    rows_in: int
    dropped: dict[str, int]
    num_requests: int
    num_steps: int
    clock_s: float
    run_time_s: float
    warnings: list[str]


class Run(Protocol):
    """A run that is ready to start, in any mode."""

    core: EngineCore
    scheduler: Scheduler
    clients: Clients

    @property
    def now(self) -> int:
        """Time on the run's clock, integer ns."""

    def run(self, writer: LogWriter, progress: Report) -> None:
        """Run to the end, or until nothing can go on; `progress` may raise to end it between two steps."""

    def close(self, directory: Path) -> None:
        """Complete the log, also of a run that was cut short."""


class Mode(Protocol):
    """What `--mode` chooses: made from the options, it checks them before any long work.

    Attributes:
        flush_seconds: how often the log is written at least; None leaves it to the number of rows.
        can_lag: whether a request can be handed over later than it is due.
    """

    flush_seconds: float | None
    can_lag: bool

    def config(self, shares_prefixes: bool) -> SchedulerConfig:
        """The scheduler's configuration: what was given, what follows from the device, the defaults.

        The prefix cache is on by default where the trace says what prompts share.
        """

    def facts(self) -> dict[str, Any]:
        """What the manifest says of the device."""

    def make_run(self, workload: Workload, config: SchedulerConfig, policy: SchedulingPolicy) -> Run:
        """Everything that is done before the clock starts. Whatever is wrong with a model is found here."""


def _simulated(options: ReplayOptions) -> Mode:
    from experiments.simulated import SimulatedMode

    return SimulatedMode(options)


def _real(options: ReplayOptions) -> Mode:
    try:
        from experiments.real import RealMode
    except ModuleNotFoundError as error:
        raise InputError(f"--mode real needs {error.name}: pip install 'tinyllm[engine]'") from error
    return RealMode(options)


def _vllm(options: ReplayOptions) -> Mode:
    try:
        from experiments.vllm_mode import VLLMMode
    except ModuleNotFoundError as error:
        raise InputError(f"--mode vllm needs {error.name}: pip install 'tinyllm[engine]'") from error
    return VLLMMode(options)


MODES: dict[str, Callable[[ReplayOptions], Mode]] = {"sim": _simulated, "real": _real, "vllm": _vllm}
"""A new mode is a class of its own and a line here."""


def replay(options: ReplayOptions, progress: Reporter | None = None) -> ReplayResult:
    """Replay a trace and write its log.

    Raises:
        InputError: a wrong option, file or row; no run directory exists then.
        IncompleteRunError: the run was interrupted, is stalled or invalid, or its log could not be written
            to the end. The run directory says so, and holds what happened until then.
    """
    make_mode = MODES.get(options.mode)
    if make_mode is None:
        raise InputError(f"--mode {options.mode}: unknown; choose {', '.join(MODES)}")
    if not options.max_lag_share >= 0:
        raise InputError(f"--max-lag-share {options.max_lag_share}: give a share of at least 0, e.g. 0.05")
    check_options(options)
    slo_ns("client-timeout", options.client_timeout)
    check_free(options.out, force=options.force)
    mode = make_mode(options)
    policy = make_policy(options.policy, options.policy_args)
    _check_deadlines(options, policy)
    limits = mode.config(shares_prefixes=False)
    trace = load_trace(options, limits.max_model_len, limits.block_size)
    workload = build_workload(trace, options, limits.max_model_len)
    config = mode.config(shares_prefixes=workload.shares_prefixes)
    records = workload.records
    _refuse_hopeless(records, config)

    started = time.perf_counter()
    run = mode.make_run(workload, config, policy)
    building_s = time.perf_counter() - started
    directory = RunDirectory(
        options.out, _manifest(options, config, trace) | mode.facts(), force=options.force
    )
    with log_errors(options.out):
        directory.write_workload(records)
        started = time.perf_counter()
        _serve(run, directory, mode.flush_seconds, len(records), progress or no_progress)
        stalled = _stalled(run)
        clock_s = run.now / NS
        run.close(directory.path)
        run_time_s = building_s + time.perf_counter() - started
        facts = {"num_steps": run.core.num_steps, "clock_s": clock_s, "run_time_s": run_time_s}
        facts |= _turns(workload, directory)
        directory.finish("stalled" if stalled else "complete", **facts)
        if mode.can_lag and not stalled:
            _judge_lag(options, directory)
    if stalled:
        raise IncompleteRunError(f"{options.out}: stalled with nothing left to come; {stalled}")
    provenance = trace.provenance
    return ReplayResult(
        directory=options.out,
        rows_in=provenance.rows_in,
        dropped=dict(provenance.dropped),
        num_requests=len(records),
        num_steps=run.core.num_steps,
        clock_s=clock_s,
        run_time_s=run_time_s,
        warnings=provenance.warnings,
    )


def _serve(
    run: Run, directory: RunDirectory, flush_seconds: float | None, num_requests: int, progress: Reporter
) -> None:
    """Run to the end; where it is cut short, leave a log that says so."""
    writer = directory.open_log(flush_seconds)
    with between_steps() as check, progress(num_requests) as report:

        def tick(now: int, done: int) -> None:
            check()
            report(now, done)

        try:
            run.run(writer, tick)
        except StopRequestedError:
            run.close(directory.path)
            directory.finish("interrupted", num_steps=run.core.num_steps)
            raise IncompleteRunError(
                f"{directory.path}: interrupted; the log is valid up to then, and says so"
            ) from None
        except Exception as error:
            # Most likely a policy of the user's, who needs the traceback. The steps before it are kept.
            writer.flush()
            directory.finish("interrupted", error=repr(error))
            raise


def _check_deadlines(options: ReplayOptions, policy: SchedulingPolicy) -> None:
    """Refuse rules that go by deadlines which nothing gives: they would do nothing, and nobody would notice."""
    needs = {}
    if policy.slo is not None:
        needs[f"--policy {options.policy}"] = policy.slo
    if options.early_rejection in ("expired", "predicted"):
        needs[f"--early-rejection {options.early_rejection}"] = "ttft_slo"
    for rule, slo in needs.items():
        if getattr(options, slo) is None:
            raise InputError(f"{rule} goes by deadlines: give --{slo.replace('_', '-')}, in seconds")


def _turns(workload: Workload, directory: RunDirectory) -> dict[str, Any]:
    """For the manifest: how later turns came, once all of the log is there."""
    if not workload.turns:
        return {}
    facts = turn_facts(workload.turns, read_run(directory.path).requests)
    return {"turns": facts | {"guessed_thinks": workload.num_guessed_thinks}}


def _judge_lag(options: ReplayOptions, directory: RunDirectory) -> None:
    """Declare a run invalid whose requests were handed over late: it was not the open loop that it says."""
    run = read_run(directory.path)
    lag_share = summarize(run)["lag_share"] or 0.0
    valid = lag_share <= options.max_lag_share
    directory.finish("complete", lag_share=lag_share, valid=valid)
    if not valid:
        raise IncompleteRunError(
            f"{options.out}: invalid: requests were handed over late by {lag_share:.1%} of all TTFT, over "
            f"--max-lag-share {options.max_lag_share:g}; use an idle machine or a lower rate"
        )


@contextmanager
def log_errors(out: Path) -> Any:
    """Turn a failing disk into one line; the manifest keeps saying `running`, the parts written are whole."""
    try:
        yield
    except OSError as error:
        raise IncompleteRunError(
            f"{out}: the log could not be written ({error.strerror or error}); "
            "it ends early, free some space and replay again with --force"
        ) from error


def _refuse_hopeless(records: list[ArrivalRecord], config: SchedulerConfig) -> None:
    """Say at once if no request could be served, before anything is written."""
    reason = None
    for record in records:
        request = Request(record.request_id, record.prompt_tokens, record.max_tokens)
        reason = refusal(config, request)
        if reason is None:
            return
    raise InputError(f"every request would be refused, the last one because it {_clause(reason)}")


def _clause(reason: str | None) -> str:
    return reason if reason and reason.startswith("needs") else f"can't be served: {reason}"


def _stalled(run: Run, shown: int = 10) -> str | None:
    """Each unfinished request and what it waits for; None if there is none."""
    unfinished = run.scheduler.unfinished()
    if not unfinished:
        return None
    lines = [f"{r.request_id} {waits_for(run.scheduler, r, run.now)}" for r in unfinished[:shown]]
    if len(unfinished) > shown:
        lines.append(f"and {len(unfinished) - shown} more")
    if run.clients.num_waiting:
        lines.append(f"{run.clients.num_waiting} later turns wait for a turn before them to end")
    return "; ".join(lines)


def _manifest(options: ReplayOptions, config: SchedulerConfig, trace: Trace) -> dict[str, Any]:
    return {
        "mode": options.mode,
        "seed": options.seed,
        "policy": {"name": options.policy, "args": dict(options.policy_args)},
        "config": config.to_dict(),
        "trace": provenance_dict(trace.provenance) | {"prefix_block_size": trace.prefix_block_size},
        "length_knowledge": {
            "declared": options.declared_max_tokens,
            "predictor": options.predictor,
            "refresh_predictions": options.refresh_predictions,
        },
        **session_facts(options),
    }
