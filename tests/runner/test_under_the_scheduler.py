from __future__ import annotations

from collections.abc import Callable

import pytest

from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.fcfs import FCFS
from tinyllm.policy.request import Request
from tinyllm.policy.scheduler import Scheduler
from tinyllm.runner.model_runner import ModelRunner

NUM_OUTPUT_TOKENS = 8
PREFIX = list(range(10, 19))
PROMPTS = [[1], [*PREFIX, 3], [5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3], [*PREFIX, 3, 4], [2, 2, 2], [*PREFIX, 3]]


def outputs_under(
    runner: ModelRunner, config: SchedulerConfig, params: list[SamplingParams]
) -> tuple[list[list[int]], int, int]:
    """Outputs of the prompts, with the preemptions and the cached tokens that it took."""
    scheduler, processor = Scheduler(config, FCFS()), TargetLengthProcessor()
    core = EngineCore(scheduler, processor)
    requests: list[Request] = []
    for row, (prompt, p) in enumerate(zip(PROMPTS, params, strict=True)):
        size = config.block_size
        hashes = [tuple(prompt[: end + size]) for end in range(0, len(prompt) - size + 1, size)]
        request = Request(str(row), len(prompt), NUM_OUTPUT_TOKENS, block_hashes=hashes)
        record = ArrivalRecord(str(row), row, 0, len(prompt), NUM_OUTPUT_TOKENS, NUM_OUTPUT_TOKENS)
        processor.add(request, NUM_OUTPUT_TOKENS)
        assert core.add_request(record, request, 0) is None
        runner.add(str(row), prompt, p)
        requests.append(request)
    outputs: dict[str, list[int]] = {}
    now = 0
    while core.num_unfinished:
        now += 1
        batch = core.begin_step(now)
        result = runner.run(batch)
        for request in core.finish_step(batch, result, now):
            outputs[request.request_id] = runner.token_ids(request.request_id)[request.num_prompt_tokens :]
            runner.remove(request.request_id)
    preemptions = sum(request.num_preemptions for request in requests)
    return [outputs[r.request_id] for r in requests], preemptions, sum(r.num_cached_tokens for r in requests)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0),
        SamplingParams(temperature=2.0, seed=4, top_p=0.95),
        SamplingParams(temperature=0, repetition_penalty=1.3, frequency_penalty=0.5),
    ],
    ids=["greedy", "seeded", "penalized"],
)
def test_a_tiny_pool_small_chunks_and_the_prefix_cache_change_the_schedule_and_never_a_token(
    make_model: Callable, params: SamplingParams
) -> None:
    every = [params] * len(PROMPTS)

    def run(**settings: object) -> tuple[list[list[int]], int, int]:
        config = SchedulerConfig(**{"block_size": 4, "num_gpu_blocks": 200, **settings})
        runner = ModelRunner(make_model(window=6), config.num_gpu_blocks, config.block_size)
        return outputs_under(runner, config, every)

    expected, preemptions, cached = run()
    assert preemptions == cached == 0
    assert len({tuple(tokens) for tokens in expected}) > 3

    found, preemptions, _ = run(num_gpu_blocks=8)
    assert found == expected and preemptions > 0
    found, _, cached = run(enable_prefix_caching=True, max_num_seqs=2)
    assert found == expected and cached > 0
    found, preemptions, _ = run(num_gpu_blocks=8, enable_prefix_caching=True, max_num_batched_tokens=5)
    assert found == expected and preemptions > 0
    found, _, _ = run(block_size=1, num_gpu_blocks=30, long_prefill_token_threshold=2)
    assert found == expected
