"""The recorder: turns what the engine does into the rows of the event log, the same in both modes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from tinyllm.engine.record.schema import STEPS
from tinyllm.engine.record.workload import NS, ArrivalRecord, request_from, seconds
from tinyllm.engine.record.writer import LogWriter
from tinyllm.policy.batch import ScheduledBatch
from tinyllm.policy.request import FinishReason, Request
from tinyllm.policy.scheduler import Scheduler

_GAP_COLUMN: Final = STEPS.get_field_index("gap_s")


class StepTimes(NamedTuple):
    """Times of one step in ns: its begin and end on the run's clock, and the parts of it that were measured."""

    start: int
    end: int
    schedule: int
    execute: int


class Recorder(Protocol):
    """What the engine tells of itself. Times are integer ns since the start of the run."""

    def queued(self, record: ArrivalRecord, request: Request, now: int) -> None:
        """A request was accepted."""

    def rejected(
        self, record: ArrivalRecord, submitted: int, reason: str, taken_up: int | None = None
    ) -> None:
        """A request was refused, when the engine took it up; None: at once."""

    def aborted(self, request: Request, now: int) -> None:
        """A request was ended from outside, between steps."""

    def dropped(self, request: Request, now: int) -> None:
        """A request that waited was rejected, since its deadline had passed."""

    def stepped(
        self,
        batch: ScheduledBatch,
        finished: list[Request],
        times: StepTimes,
        errors: Mapping[str, str],
    ) -> None:
        """A step was computed and accounted; `errors` has the reason of each request that failed in it."""

    def ready(self, now: int) -> None:
        """From now on the next step could start."""

    def close(self, now: int) -> None:
        """The run is over; what is unfinished is recorded as such."""


class NullRecorder:
    """Records nothing: for the engine without a log."""

    def queued(self, record: ArrivalRecord, request: Request, now: int) -> None: ...
    def rejected(
        self, record: ArrivalRecord, submitted: int, reason: str, taken_up: int | None = None
    ) -> None: ...
    def aborted(self, request: Request, now: int) -> None: ...
    def dropped(self, request: Request, now: int) -> None: ...
    def stepped(
        self,
        batch: ScheduledBatch,
        finished: list[Request],
        times: StepTimes,
        errors: Mapping[str, str],
    ) -> None: ...
    def ready(self, now: int) -> None: ...
    def close(self, now: int) -> None: ...


class _Track:
    """What the log needs of an unfinished request beyond the policy's view of it."""

    __slots__ = (
        "cached_prompt_tokens",
        "first_scheduled",
        "first_step",
        "first_token",
        "last_step",
        "phase",
        "record",
        "request",
        "submitted",
        "submitted_step",
        "tokens",
    )

    def __init__(self, record: ArrivalRecord, request: Request, submitted: int, step: int) -> None:
        self.record = record
        self.request = request
        self.submitted = submitted
        self.submitted_step = step
        self.first_scheduled: int | None = None
        self.first_token: int | None = None
        self.cached_prompt_tokens: int | None = None
        # The open span; none where phase is None. A decode span has one token a step: only its start is kept.
        self.phase: str | None = None
        self.first_step = 0
        self.last_step = 0
        self.tokens = 0


class LogRecorder:
    """Writes the log of one engine (`replica`) to a `LogWriter`.

    Its cost is that of the rows that change phase, not of every scheduled row: a decode span stays open,
    untouched, for as long as the step's number of decoding rows proves that none of them was left out.
    """

    def __init__(self, writer: LogWriter, scheduler: Scheduler, replica: int = 0) -> None:
        self._writer = writer
        self._scheduler = scheduler
        self._replica = replica
        self._step = 0
        self._tracks: dict[str, _Track] = {}
        # Residents after their first sample, and how many of them have no open span because a step left them out.
        self._decoding: dict[str, _Track] = {}
        self._num_paused = 0
        self._open_step: list[object] | None = None
        self._step_end = 0

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────

    def queued(self, record: ArrivalRecord, request: Request, now: int) -> None:
        self._tracks[request.request_id] = _Track(record, request, now, self._step)
        self._event(now, request.request_id, "queued")

    def rejected(
        self, record: ArrivalRecord, submitted: int, reason: str, taken_up: int | None = None
    ) -> None:
        now = submitted if taken_up is None else taken_up
        track = _Track(record, request_from(record), submitted, self._step)
        self._event(now, record.request_id, "rejected", detail=reason)
        self._write_request(track, now, FinishReason.REJECTED, reason)

    def aborted(self, request: Request, now: int) -> None:
        self._end(request, now, "aborted", self._step - 1)

    def dropped(self, request: Request, now: int) -> None:
        late = "its first-token deadline passed while it waited (early rejection)"
        self._end(request, now, "rejected", self._step - 1, error=late, detail=late)

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────

    def stepped(
        self,
        batch: ScheduledBatch,
        finished: list[Request],
        times: StepTimes,
        errors: Mapping[str, str],
    ) -> None:
        step, start, end = self._step, times.start, times.end
        for request in batch.preempted:
            self._close_span(self._tracks[request.request_id], step - 1)
            self._event(start, request.request_id, "preempted")
        for request in batch.admitted:
            self._admitted(request, start)
        if batch.decode_seqs != len(self._decoding) or self._num_paused:
            self._reconcile_decodes(batch, step)
        for row in batch.prefill_rows:
            request = batch.requests[row]
            samples = row not in batch.partial_rows and request.request_id not in errors
            self._prefilled(request, batch.num_scheduled_tokens[row], samples, end)
        for request in finished:
            self._end(request, end, "finished", step, error=errors.get(request.request_id))
        self._buffer_step(batch, batch.num_sampled - len(errors), len(finished), times)
        self._step = step + 1

    def ready(self, now: int) -> None:
        row = self._open_step
        if row is not None:
            row[_GAP_COLUMN] = (now - self._step_end) / NS
            self._writer.steps.append(row)
            self._open_step = None
        self._writer.flush_if_due()

    def close(self, now: int) -> None:
        self.ready(now)
        for track in list(self._tracks.values()):
            self._end(track.request, now, "unfinished", self._step - 1, FinishReason.UNFINISHED)
        self._writer.flush()

    def _buffer_step(
        self, batch: ScheduledBatch, num_sampled: int, num_finished: int, times: StepTimes
    ) -> None:
        start, end = times.start, times.end
        scheduler, pool = self._scheduler, self._scheduler.kv.pool
        used, cached = pool.num_used, pool.num_cached
        self._step_end = end
        self._open_step = [
            self._step,
            1,
            self._replica,
            start / NS,
            end / NS,
            0.0,  # gap_s: known when the next step could start
            times.schedule / NS,
            times.execute / NS,
            len(scheduler.running),
            len(scheduler.waiting),
            batch.prefill_seqs,
            batch.decode_seqs,
            batch.prefill_tokens,
            batch.decode_seqs,
            num_sampled,
            batch.prefill_attention_pairs,
            batch.decode_context_tokens,
            used,
            cached,
            pool.num_blocks - used - cached,
            len(batch.admitted),
            len(batch.preempted),
            num_finished,
        ]

    def _admitted(self, request: Request, start: int) -> None:
        track = self._tracks[request.request_id]
        if track.first_scheduled is None:
            track.first_scheduled = start
            track.cached_prompt_tokens = request.num_cached_tokens
            self._event(start, request.request_id, "scheduled")
        else:
            self._event(start, request.request_id, "resumed")

    def _prefilled(self, request: Request, num_tokens: int, samples: bool, end: int) -> None:
        step = self._step
        track = self._tracks[request.request_id]
        if track.phase == "prefill" and track.last_step == step - 1:
            track.tokens += num_tokens
        else:
            self._close_span(track, track.last_step)
            track.phase, track.first_step, track.tokens = "prefill", step, num_tokens
        track.last_step = step
        if not samples:
            return
        self._write_span(track, "prefill", step, track.tokens, sampled=1)
        # It decodes from the next step on; should that leave it out, the span is found empty and dropped.
        track.phase, track.first_step = "decode", step + 1
        self._decoding[request.request_id] = track
        if track.first_token is None:
            track.first_token = end
            self._event(end, request.request_id, "first_token")

    # ── spans ────────────────────────────────────────────────────────────────────────────────────────

    def _reconcile_decodes(self, batch: ScheduledBatch, step: int) -> None:
        """End the decode spans of residents that this step left out, and start those that it took up again."""
        prefills = set(batch.prefill_rows)
        scheduled = {r.request_id for row, r in enumerate(batch.requests) if row not in prefills}
        self._num_paused = 0
        for request_id, track in self._decoding.items():
            if request_id not in scheduled:
                self._close_open_span(track, step - 1)
                self._num_paused += 1
            elif track.phase is None:
                track.phase, track.first_step = "decode", step

    def _close_span(self, track: _Track, last_step: int, failed: bool = False) -> None:
        """End whatever span is open; the request is no longer among the decoding ones.

        Args:
            failed: the last step computed its row and sampled nothing.
        """
        if self._decoding.pop(track.request.request_id, None) is not None and track.phase is None:
            self._num_paused -= 1
        self._close_open_span(track, last_step, failed)

    def _close_open_span(self, track: _Track, last_step: int, failed: bool = False) -> None:
        if track.phase == "decode" and last_step >= track.first_step:
            num_steps = last_step - track.first_step + 1
            self._write_span(track, "decode", last_step, num_steps, sampled=num_steps - failed)
        elif track.phase == "prefill":
            self._write_span(track, "prefill", track.last_step, track.tokens, sampled=0)
        track.phase = None

    def _write_span(self, track: _Track, phase: str, last_step: int, tokens: int, sampled: int) -> None:
        self._writer.spans.append(
            (track.request.request_id, self._replica, phase, track.first_step, last_step, tokens, sampled)
        )

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────

    def _event(self, now: int, request_id: str, event: str, detail: str | None = None) -> None:
        self._writer.events.append((now / NS, request_id, self._replica, event, self._step, detail))

    def _end(
        self,
        request: Request,
        now: int,
        event: str,
        last_step: int,
        reason: FinishReason | None = None,
        error: str | None = None,
        detail: str | None = None,
    ) -> None:
        track = self._tracks.pop(request.request_id)
        self._close_span(track, last_step, failed=error is not None)
        reason = reason or request.finish_reason
        assert reason is not None
        self._event(now, request.request_id, event, detail=detail or reason.value)
        self._write_request(track, now, reason, error)

    def _write_request(self, track: _Track, now: int, reason: FinishReason, error: str | None) -> None:
        record, request = track.record, track.request
        served = reason not in (FinishReason.REJECTED, FinishReason.UNFINISHED)
        self._writer.requests.append(
            (
                record.request_id,
                record.source_row,
                record.tenant,
                record.session,
                record.priority,
                self._replica,
                record.arrival_ns / NS,
                track.submitted / NS,
                track.submitted_step,
                seconds(track.first_scheduled),
                seconds(track.first_token),
                now / NS if served else None,
                record.prompt_tokens,
                record.max_tokens,
                record.target_output_tokens,
                request.num_output_tokens,
                track.cached_prompt_tokens,
                request.num_recomputed_tokens,
                request.num_preemptions,
                reason.value,
                error,
            )
        )
