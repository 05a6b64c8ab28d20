"""The engine's step: schedule, execute, account, record. Who calls it decides what a clock is."""

from __future__ import annotations

from collections.abc import Callable

from tinyllm.engine.output import OutputProcessor
from tinyllm.engine.record.recorder import NullRecorder, Recorder, StepTimes
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.engine.runner import Runner, StepResult
from tinyllm.policy.batch import ScheduledBatch
from tinyllm.policy.request import FinishReason, Request
from tinyllm.policy.scheduler import Scheduler


class EngineCore:
    """One engine. A driver calls, in this order and never overlapping::

        add_request, abort …   between steps, as they are due
        begin_step(now)        → a batch to execute, or None if nothing can run
        finish_step(batch, result, now)
        ready(now)             the next step could start from here on

    A simulation lets its clock run between these calls; `step` runs them around a real runner.
    Times are integer ns since the start of the run.
    """

    def __init__(
        self, scheduler: Scheduler, output_processor: OutputProcessor, recorder: Recorder | None = None
    ) -> None:
        self.scheduler = scheduler
        self.output_processor = output_processor
        self.recorder: Recorder = recorder or NullRecorder()
        self.num_steps = 0
        self.dropped: list[Request] = []
        """Requests that the last `begin_step` rejected after they had waited."""
        self.step_end = 0
        """When the last `step` ended, the time of its tokens."""
        self._start = 0
        self._scheduled = 0

    @property
    def num_unfinished(self) -> int:
        """Requests waiting or running."""
        return self.scheduler.num_unfinished

    def add_request(
        self, record: ArrivalRecord, request: Request, now: int, submitted: int | None = None
    ) -> str | None:
        """Let a request wait.

        Args:
            submitted: when it was handed over, if that was before `now`.

        Returns:
            None, or the reason for which it was refused; the others are unaffected.
        """
        submitted = now if submitted is None else submitted
        reason = self.scheduler.add_request(request, now)
        if reason is None:
            self.recorder.queued(record, request, submitted)
        else:
            self.recorder.rejected(record, submitted, reason, now)
        return reason

    def abort(self, request_id: str, now: int, reason: FinishReason = FinishReason.ABORT) -> bool:
        """End an unfinished request; False if there is none with this id."""
        request = self.scheduler.abort(request_id, now, reason)
        if request is None:
            return False
        self.output_processor.remove(request_id)
        self.recorder.aborted(request, now)
        return True

    def begin_step(self, now: int) -> ScheduledBatch | None:
        """Schedule the next step; None if nothing can run now. Requests that early rejection drops end here."""
        self._start = self._scheduled = now
        self.dropped = self.scheduler.drop_expired(now)
        for request in self.dropped:
            self.output_processor.remove(request.request_id)
            self.recorder.dropped(request, now)
        return self.scheduler.schedule(now)

    def scheduled(self, now: int) -> None:
        """The step that began is scheduled: from here on it executes. Without this call, deciding took no time."""
        self._scheduled = now

    def finish_step(
        self, batch: ScheduledBatch, result: StepResult | None, now: int, execute_ns: int | None = None
    ) -> list[Request]:
        """Account a step that ended now.

        Args:
            result: what the runner returned; None in simulation.
            execute_ns: measured execution time, if it is not simply all the time since `begin_step`.

        Returns:
            The requests that ended with it.
        """
        outcomes = self.output_processor.process(batch, result)
        finished = self.scheduler.update_from_output(batch, outcomes, now)
        for request in finished:
            self.output_processor.remove(request.request_id)
        schedule_ns = self._scheduled - self._start
        execute_ns = now - self._scheduled if execute_ns is None else execute_ns
        times = StepTimes(self._start, now, schedule_ns, execute_ns)
        self.recorder.stepped(batch, finished, times, _errors(batch, result))
        self.num_steps += 1
        return finished

    def ready(self, now: int) -> None:
        """The work after a step is done: the next one could start now."""
        self.recorder.ready(now)

    def step(self, runner: Runner, clock: Callable[[], int], now: int | None = None) -> list[Request] | None:
        """One real step: schedule, run, account, all on `clock`.

        Args:
            now: when the step begins, if `clock` was read before: a policy then hears of the requests just
                added and is asked for the step at one and the same time, which makes the step repeatable.

        Returns:
            The requests that ended with it, or None if nothing could run.
        """
        batch = self.begin_step(clock() if now is None else now)
        for request in self.dropped:
            runner.remove(request.request_id)
        if batch is None:
            return None
        self.scheduled(clock())
        result = runner.run(batch)
        self.step_end = clock()
        finished = self.finish_step(batch, result, self.step_end, result.execute_ns)
        for request in finished:
            runner.remove(request.request_id)
        self.ready(clock())
        return finished


def _errors(batch: ScheduledBatch, result: StepResult | None) -> dict[str, str]:
    """The rows that failed, by request id."""
    if result is None or result.errors is None:
        return {}
    sampling = [request for request, samples in zip(batch.requests, batch.samples, strict=True) if samples]
    return {
        request.request_id: error
        for request, error in zip(sampling, result.errors, strict=True)
        if error is not None
    }
