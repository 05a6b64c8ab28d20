"""vLLM's own Scheduler without a model: no weights, made-up tokens, a step in microseconds."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, VllmConfig
from vllm.config import SchedulerConfig as VLLMSchedulerConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from tinyllm.bridge.options import num_blocks, scheduler_options
from tinyllm.bridge.requests import EXTRA_ARGS
from tinyllm.bridge.scheduler import PolicyScheduler
from tinyllm.policy.config import SchedulerConfig

EOS: Final = 0
LONGEST: Final = 8192
"""Context of the model that is not there; vLLM knows no request without a limit."""

_MODEL: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "vocab_size": 32_000,
    "max_position_embeddings": LONGEST,
    "dtype": "float32",
}


class Scheduled(NamedTuple):
    """What vLLM's `schedule` decided, by request id.

    Attributes:
        rows: tokens of each row, in scheduling order.
        admitted: of those that did not run on from the step before, how many tokens they found in the prefix cache.
        preempted: victims in the order in which they lost their blocks.
    """

    rows: list[tuple[str, int]]
    admitted: list[tuple[str, int]]
    preempted: list[str]


class Watched(Scheduler):  # type: ignore[misc]  # a type of vLLM's
    """vLLM's scheduler as it is, or a subclass of it, which also keeps count of its victims.

    Attributes:
        victims: of the last step, in the order in which they lost their blocks.
        num_uncomputed_blocks: blocks that went back to the pool as cached although their tokens were never
            computed: under priority a step may take back what it has scheduled, and leaves its blocks' hashes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.victims: list[str] = []
        self.num_uncomputed_blocks = 0

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self.victims.append(request.request_id)
        [manager] = self.kv_cache_manager.coordinator.single_type_managers
        hashed = manager.num_cached_block.get(request.request_id, 0)
        self.num_uncomputed_blocks += max(0, hashed - request.num_computed_tokens // self.block_size)
        super()._preempt_request(request, *args, **kwargs)


class WatchedPolicyScheduler(Watched, PolicyScheduler):
    """Ours likewise, on a clock that a driver sets."""

    now = 0

    def clock(self) -> int:
        return self.now


class HeadlessVLLM:
    """vLLM's Scheduler, or `PolicyScheduler`, under the configuration that is ours in its words.

    Args:
        config: ours; `scheduler_options` translates it.
        policy: vLLM's, `fcfs` or `priority`.
        bridge: settings of a `PolicyScheduler`; None takes vLLM's own.
    """

    def __init__(
        self, config: SchedulerConfig, policy: str = "fcfs", bridge: dict[str, Any] | None = None
    ) -> None:
        self.scheduler = _make_scheduler(config, policy, bridge)
        init_none_hash(sha256)
        caching = config.enable_prefix_caching
        self._hasher = get_request_block_hasher(config.block_size, sha256) if caching else None
        self._output: SchedulerOutput | None = None

    def add(
        self,
        name: str,
        tokens: Sequence[int],
        max_tokens: int,
        *,
        priority: int = 0,
        arrival: float = 0.0,
        record: dict[str, Any] | None = None,
    ) -> None:
        """Let a request of these prompt tokens wait; `record` is what a `PolicyScheduler` is told of it."""
        params = SamplingParams(
            max_tokens=max_tokens,
            stop_token_ids=[EOS],
            ignore_eos=True,
            extra_args=None if record is None else {EXTRA_ARGS: record},
        )
        request = Request(
            request_id=name,
            prompt_token_ids=list(tokens),
            sampling_params=params,
            pooling_params=None,
            arrival_time=arrival,
            priority=priority,
            block_hasher=self._hasher,
        )
        self.scheduler.add_request(request)

    def abort(self, name: str) -> None:
        """End a request, if it has not ended."""
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def schedule(self) -> Scheduled:
        """Begin a step; `finish` ends it."""
        scheduler = self.scheduler
        before = {request.request_id for request in scheduler.running}
        scheduler.victims.clear()
        self._output = output = scheduler.schedule()
        rows = list(output.num_scheduled_tokens.items())
        ran_on = before - set(scheduler.victims)
        # vLLM counts a step's tokens as computed once it is scheduled.
        admitted = [
            (name, scheduler.requests[name].num_computed_tokens - count)
            for name, count in rows
            if name not in ran_on
        ]
        return Scheduled(rows, admitted, list(scheduler.victims))

    def finish(self, sampled: dict[str, int]) -> list[str]:
        """End a step in which these tokens were sampled; return the ids of the requests that ended with it."""
        assert self._output is not None
        names = list(self._output.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[sampled[name]] if name in sampled else [] for name in names],
        )
        self.scheduler.update_from_output(self._output, result)
        return [name for name in names if name not in self.scheduler.requests]

    @property
    def num_free_blocks(self) -> int:
        """Blocks without an owner."""
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    @property
    def num_cached_blocks(self) -> int:
        """Of those, the ones that a prompt can still hit."""
        blocks = self.scheduler.kv_cache_manager.block_pool.blocks
        return sum(block.ref_cnt == 0 and block.block_hash is not None for block in blocks)


def _make_scheduler(config: SchedulerConfig, policy: str, bridge: dict[str, Any] | None) -> Watched:
    model = _model_config()
    model.max_model_len = config.max_model_len or LONGEST
    cache_config = CacheConfig(
        block_size=config.block_size, enable_prefix_caching=config.enable_prefix_caching
    )
    cache_config.num_gpu_blocks = num_blocks(config)
    vllm_config = VllmConfig(
        model_config=model,
        cache_config=cache_config,
        device_config=DeviceConfig("cpu"),
        additional_config={} if bridge is None else {"tinyllm": bridge},
        scheduler_config=VLLMSchedulerConfig(
            policy=policy,
            max_model_len=model.max_model_len,
            is_encoder_decoder=False,
            **scheduler_options(config),
        ),
    )
    spec = FullAttentionSpec(block_size=config.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    scheduler_class = Watched if bridge is None else WatchedPolicyScheduler
    return scheduler_class(
        vllm_config=vllm_config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks(config),
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=config.block_size,
    )


@cache
def _model_config() -> ModelConfig:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
        return ModelConfig(model=directory, skip_tokenizer_init=True, dtype="float32", seed=0)
