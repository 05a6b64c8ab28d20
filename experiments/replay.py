"""`tinyllm replay`: a trace, a policy and an engine in, an event log out."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.options import ReplayOptions
from experiments.progress import Reporter, no_progress
from experiments.run_directory import RunDirectory, check_free
from experiments.simulated import SimulatedReplay, make_device, scheduler_config
from experiments.workload import build_workload, load_trace
from tinyllm.engine.record.workload import NS, ArrivalRecord
from tinyllm.errors import IncompleteRunError, InputError
from tinyllm.policy.admission import refusal
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.explain import waits_for
from tinyllm.policy.registry import make_policy
from tinyllm.policy.request import Request
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
        simulated_s: time on the run's clock, seconds.
        run_time_s: wall time from building the pool to the closed log, seconds.
        warnings: what the trace's reader should know.
    """

    directory: Path
    rows_in: int
    dropped: dict[str, int]
    num_requests: int
    num_steps: int
    simulated_s: float
    run_time_s: float
    warnings: list[str]


def replay(options: ReplayOptions, progress: Reporter | None = None) -> ReplayResult:
    """Replay a trace and write its log.

    Raises:
        InputError: a wrong option, file or row; no run directory exists then.
        IncompleteRunError: the run was interrupted, is stalled, or its log could not be written to the end.
            The run directory says so, and holds what happened until then.
    """
    run = MODES.get(options.mode)
    if run is None:
        raise InputError(f"--mode {options.mode}: unknown; choose {', '.join(MODES)}")
    check_free(options.out, force=options.force)
    return run(options, progress or no_progress)


def _replay_simulated(options: ReplayOptions, progress: Reporter) -> ReplayResult:
    device = make_device(options)
    max_model_len = options.max_model_len or device.defaults.get("max_model_len")
    policy = make_policy(options.policy, options.policy_args)
    trace = load_trace(options, max_model_len)
    config = scheduler_config(options, device.defaults, trace.prefix_block_size is not None)
    records = build_workload(trace, options, max_model_len)
    _refuse_hopeless(records, config)

    manifest = _manifest(options, config, trace) | {
        "device": "simulated",
        "cost_model": device.cost.describe(),
    }
    directory = RunDirectory(options.out, manifest, force=options.force)
    with log_errors(options.out):
        directory.write_workload(records)
        started = time.perf_counter()
        with progress(len(records)) as report:
            run = SimulatedReplay(
                records,
                config,
                policy,
                device.cost,
                directory.open_log(),
                trace.prefix_block_size,
                report,
            )
            try:
                run.run()
            except KeyboardInterrupt:
                run.close()
                directory.finish("interrupted")
                raise IncompleteRunError(
                    f"{options.out}: interrupted; the log is valid up to then, and says so"
                ) from None
        stalled = _stalled(run)
        run.close()
        run_time = time.perf_counter() - started
        facts = {"num_steps": run.core.num_steps, "simulated_s": run.now / NS, "run_time_s": run_time}
        directory.finish("stalled" if stalled else "complete", **facts)
    if stalled:
        raise IncompleteRunError(f"{options.out}: stalled with nothing left to come; {stalled}")
    return ReplayResult(
        options.out,
        trace.provenance.rows_in,
        dict(trace.provenance.dropped),
        len(records),
        run.core.num_steps,
        run.now / NS,
        run_time,
        trace.provenance.warnings,
    )


MODES: dict[str, Callable[[ReplayOptions, Reporter], ReplayResult]] = {"sim": _replay_simulated}
"""What `--mode` chooses from. A new mode is a function here."""


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


def _stalled(run: SimulatedReplay, shown: int = 10) -> str | None:
    """Each unfinished request and what it waits for; None if there is none."""
    unfinished = run.scheduler.unfinished()
    if not unfinished:
        return None
    lines = [f"{r.request_id} {waits_for(run.scheduler, r, run.now)}" for r in unfinished[:shown]]
    if len(unfinished) > shown:
        lines.append(f"and {len(unfinished) - shown} more")
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
        },
    }
