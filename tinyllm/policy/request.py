"""A request as the policy level sees it: counts of tokens, never the tokens themselves."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import Enum
from typing import Final

BlockHash = Hashable
"""Identity of the KV content of one full block, chained: equal hashes mean an equal prefix up to there."""


class RequestState(Enum):
    """Where a request is in its life: WAITING → RUNNING ⇄ PREEMPTED → FINISHED."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why a request ended. The values are what the event log holds."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    REJECTED = "rejected"
    ERROR = "error"
    UNFINISHED = "unfinished"


class Request:
    """One request and the counters of its progress.

    A scheduling policy receives it as its *view*: it may read every public attribute and writes none.
    The true output length is not here: in simulation the output processor knows it, in real mode the model.

    Attributes:
        request_id: unique among the requests of an engine.
        index: sequence number of the request in its scheduler, from 0; the last tie-breaker.
        arrival: intended arrival, integer nanoseconds since the start of the run.
        max_tokens: the most output tokens, as the client declared them.
        priority: smaller is more urgent (as in vLLM).
        tenant: who is charged for it; None is a tenant of its own.
        session: conversation that the request belongs to.
        predicted_output_tokens: a predictor's guess of the output length, None where there is none.
        ttft_deadline, e2e_deadline: due times in ns since the start of the run, None where there is none.
        num_prompt_tokens, num_output_tokens: `num_tokens` is their sum.
        num_computed_tokens: tokens whose KV is in the cache, prefix hits included.
        num_cached_tokens: tokens whose KV was there at the last admission: prefix hits, or swapped in.
        num_recomputed_tokens: tokens computed again after preemptions, summed over the life of the request.
        num_preemptions: how often it lost its blocks.
        admitted_index: rises with every admission, over all requests; −1 before the first.
        preempted_index: rises with every preemption, over all requests; −1 before the first.
        is_decoding: has sampled a token since its last admission.
        first_token_time: when the step of its first output token ended, ns; None before.
        block_ids: the KV blocks that it holds, in token order.
        num_slots: tokens for which `block_ids` has room.
        num_cpu_blocks: blocks of host memory that hold its KV while it is swapped out.
        block_hashes: hashes of the full blocks of its tokens so far (empty without a prefix cache).
    """

    __slots__ = (
        "admitted_index",
        "arrival",
        "block_hashes",
        "block_ids",
        "computed_high_water",
        "e2e_deadline",
        "finish_reason",
        "first_token_time",
        "index",
        "is_decoding",
        "max_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_cpu_blocks",
        "num_output_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_recomputed_tokens",
        "num_registered_blocks",
        "num_slots",
        "num_tokens",
        "predicted_output_tokens",
        "preempted_index",
        "priority",
        "request_id",
        "session",
        "state",
        "tenant",
        "ttft_deadline",
    )

    def __init__(
        self,
        request_id: str,
        num_prompt_tokens: int,
        max_tokens: int,
        arrival: int = 0,
        *,
        priority: int = 0,
        tenant: str | None = None,
        session: str | None = None,
        predicted_output_tokens: int | None = None,
        ttft_deadline: int | None = None,
        e2e_deadline: int | None = None,
        block_hashes: Sequence[BlockHash] = (),
    ) -> None:
        self.request_id: Final = request_id
        self.num_prompt_tokens: Final = num_prompt_tokens
        self.max_tokens: Final = max_tokens
        self.arrival: Final = arrival
        self.priority: Final = priority
        self.tenant: Final = tenant
        self.session: Final = session
        self.predicted_output_tokens = predicted_output_tokens
        self.ttft_deadline: Final = ttft_deadline
        self.e2e_deadline: Final = e2e_deadline

        self.index = -1
        self.state = RequestState.WAITING
        self.finish_reason: FinishReason | None = None
        self.num_output_tokens = 0
        self.num_tokens = num_prompt_tokens
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_recomputed_tokens = 0
        self.num_preemptions = 0
        self.admitted_index = -1
        self.preempted_index = -1
        self.is_decoding = False
        self.first_token_time: int | None = None
        self.computed_high_water = 0

        self.block_ids: list[int] = []
        self.num_slots = 0
        self.num_cpu_blocks = 0
        self.block_hashes: list[BlockHash] = list(block_hashes)
        self.num_registered_blocks = 0

    @property
    def is_finished(self) -> bool:
        return self.state is RequestState.FINISHED

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.state.value}, prompt={self.num_prompt_tokens}, "
            f"output={self.num_output_tokens}, computed={self.num_computed_tokens})"
        )
