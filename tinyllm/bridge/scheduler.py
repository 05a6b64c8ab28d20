"""A vLLM scheduler that serves in the order of any scheduling policy.

    vllm serve MODEL --scheduler-cls tinyllm.bridge.scheduler.PolicyScheduler \\
        --additional-config '{"tinyllm": {"policy": "srpt"}}'
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request as VLLMRequest
from vllm.v1.request import RequestStatus

from tinyllm.bridge.following import FollowingScheduler
from tinyllm.bridge.options import our_config
from tinyllm.bridge.outputs import VLLMOutputs
from tinyllm.bridge.requests import record_from
from tinyllm.bridge.run_log import RunLog
from tinyllm.bridge.settings import BridgeSettings
from tinyllm.bridge.support import check_supported
from tinyllm.bridge.waiting import PolicyQueue
from tinyllm.engine.core import EngineCore
from tinyllm.engine.record.recorder import LogRecorder
from tinyllm.engine.record.workload import request_from
from tinyllm.engine.record.writer import LogWriter
from tinyllm.policy.base import SchedulingPolicy
from tinyllm.policy.batch import ScheduledBatch
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.registry import make_policy
from tinyllm.policy.request import Request


class PolicyScheduler(Scheduler):  # type: ignore[misc]  # a type of vLLM's
    """vLLM's scheduler, whose order of running and waiting requests, holds and victims are a policy's.

    Before a step the policy sorts; then vLLM's own `schedule` runs, and takes the last running request where it
    lacks blocks. What it decides is followed in `core`, an engine of ours that computes nothing: it tells the
    policy, and writes the log. Batches are vLLM's: only the order of who comes first is not.

    Raises:
        InputError: a version or a configuration of vLLM that this was not made for, or a wrong setting.
    """

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        settings = BridgeSettings.read(vllm_config.additional_config)
        policy = make_policy(settings.policy, settings.policy_args)
        check_supported(vllm_config, policy)
        super().__init__(vllm_config, *args, **kwargs)
        self._allocate_slots = self.kv_cache_manager.allocate_slots
        self.kv_cache_manager.allocate_slots = self._allocate_and_follow
        self._run_log = None if settings.log is None else RunLog(settings.log, settings, self._full_config())
        self.attach(policy, self._run_log)

    def attach(self, policy: SchedulingPolicy, log: LogWriter | None = None) -> None:
        """Begin anew under a policy, with a clock that starts now; only while no request is unfinished."""
        assert not self.requests
        self._outputs = outputs = VLLMOutputs()
        self._num_added = 0
        self.step_end = 0
        self._now = 0
        self._open: ScheduledBatch | None = None
        self._batch: ScheduledBatch | None = None
        self._output: SchedulerOutput | None = None
        self._aborted: list[Request] = []
        self._gives_way: Request | None = None
        self.following = FollowingScheduler(
            our_config(self),
            policy,
            self._decide,
            self.kv_cache_manager,
            self._outputs.theirs,
            self._give_way,
        )
        self.waiting = PolicyQueue(
            self.following, lambda: self._now, self._outputs.theirs, self._outputs.view
        )
        recorder = LogRecorder(log, self.following) if log is not None else None
        self.core = EngineCore(self.following, outputs, recorder)
        self._start, self._start_s = time.monotonic_ns(), time.time()

    def clock(self) -> int:
        """ns since `attach`."""
        return time.monotonic_ns() - self._start

    def all_block_hashes(self) -> dict[str, list[bytes]]:
        """What vLLM's prefix cache was keyed by, by request id, since `attach`."""
        return self._outputs.all_block_hashes()

    # ── what vLLM's engine calls ─────────────────────────────────────────────────────────────────────

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Schedule a step in the policy's order."""
        self._now = self.clock()
        self._take_in()
        self._batch = self.core.begin_step(self._now)
        self.core.scheduled(self.clock())
        return self._output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        """Account a computed step."""
        self.step_end = end = self._now = self.clock()
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self._batch is not None:
            self.core.finish_step(self._batch, None, end)
            self._batch = None
            self.core.ready(self.clock())
        self._abort_views()
        return outputs

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[VLLMRequest]:
        """End requests from outside; the core hears of it between steps."""
        if self._batch is None:
            self._now = self.clock()
            self._take_in()
        finished: list[VLLMRequest] = super().finish_requests(request_ids, finished_status)
        self._aborted += [self._outputs.view(request) for request in finished if self._outputs.knows(request)]
        if self._batch is None:
            self._abort_views()
            if request_ids is None:
                # The engine shuts down: its front end may kill it before it comes to `shutdown`.
                self._complete_log()
        return finished

    def shutdown(self) -> None:
        """Complete the log, if there is one, and end."""
        self._complete_log()
        super().shutdown()

    # ── what vLLM's schedule calls ───────────────────────────────────────────────────────────────────

    def _decide(self, batch: ScheduledBatch, now: int) -> None:
        """Let vLLM schedule in the order that stands now."""
        following = self.following
        self.running = [self._outputs.theirs(view) for view in following.running]
        first_held = len(self.running) - following.num_held
        for position, request in enumerate(self.running):
            # vLLM skips a running request until this step: a field that only pipeline parallelism uses.
            request.next_decode_eligible_step = self.current_step + 2 if position >= first_held else 0
        self._open = batch
        self._output = super().schedule()
        self._open = None
        if batch.num_tokens != self._output.total_num_scheduled_tokens:
            raise RuntimeError(
                f"vLLM scheduled {self._output.total_num_scheduled_tokens} tokens, {batch.num_tokens} were seen"
            )

    def _allocate_and_follow(
        self,
        request: VLLMRequest,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Blocks for a request: with them vLLM has decided that it is scheduled."""
        blocks = self._allocate_slots(request, num_new_tokens, num_new_computed_tokens, *args, **kwargs)
        if blocks is not None and self._open is not None:
            view = self._outputs.view(request)
            if request.status == RequestStatus.RUNNING:
                self.following.continued(view, num_new_tokens, self._open, self._now)
            else:
                self.following.admitted(view, num_new_computed_tokens, num_new_tokens, self._open, self._now)
        return blocks

    def _preempt_request(
        self, request: VLLMRequest, timestamp: float, drop_stale_output: bool = False
    ) -> None:
        """Preempt: vLLM in a step where it lacks blocks or to reset its cache, or the policy."""
        super()._preempt_request(request, timestamp, drop_stale_output)
        view = self._outputs.view(request)
        if view is not self._gives_way:
            batch = self._open if self._open is not None else ScheduledBatch()
            self.following.preempted(view, batch, self._now)

    def _give_way(self, view: Request) -> None:
        """A victim of the policy's, unless vLLM itself has just preempted it."""
        request = self._outputs.theirs(view)
        if request.status == RequestStatus.PREEMPTED:
            return
        self.running.remove(request)
        self._gives_way = view
        self._preempt_request(request, time.monotonic())
        self._gives_way = None
        # It may be resumed in this very step: its worker must not take it for one that ran on.
        self.prev_step_scheduled_req_ids.discard(request.request_id)

    def _take_in(self) -> None:
        """Let the core know of the requests that arrived since the last step."""
        arrived, self.waiting.arrived = self.waiting.arrived, []
        for request in arrived:
            arrival_ns = round((request.arrival_time - self._start_s) * 1e9)
            record, submitted = record_from(request, self._num_added, arrival_ns)
            self._num_added += 1
            if self.following.get(record.request_id) is not None:
                record = replace(record, request_id=request.request_id)
            if self._run_log is not None:
                self._run_log.arrived(record)
            view = request_from(record)
            self._outputs.add(view, request)
            self.core.add_request(record, view, self._now, submitted)

    def _complete_log(self) -> None:
        if self._run_log is not None:
            hashes = self.all_block_hashes()
            self.core.recorder.close(self.clock())
            self._run_log.close(self.core.num_steps, hashes)

    def _full_config(self) -> SchedulerConfig:
        """What vLLM does, its prefix cache included: what a re-simulation needs."""
        caching = bool(self.cache_config.enable_prefix_caching)
        return replace(our_config(self), enable_prefix_caching=caching, register_blocks="scheduled")

    def _abort_views(self) -> None:
        aborted, self._aborted = self._aborted, []
        for view in aborted:
            self.core.abort(view.request_id, self._now)
