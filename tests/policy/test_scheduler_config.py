from __future__ import annotations

import json
from typing import Any

import pytest

from tinyllm.errors import InputError
from tinyllm.policy import Scheduler, SchedulerConfig, make_policy


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *((name, 0) for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_gpu_blocks")),
        ("max_num_seqs", -3),
        ("block_size", 16.5),
        ("block_size", "16"),
        ("num_gpu_blocks", True),
        ("max_num_batched_tokens", float("inf")),
        ("max_model_len", 1),
        ("max_model_len", 4096.0),
        ("long_prefill_token_threshold", -1),
        ("long_prefill_token_threshold", None),
        ("watermark", 1.0),
        ("watermark", -0.1),
        ("watermark", float("nan")),
        ("watermark", "0.1"),
        ("admission", "greedy"),
        ("preemption", "sometimes"),
        ("batching", "dynamic"),
        ("early_rejection", "yes"),
        ("max_num_prefill_tokens", 0),
        ("max_num_decode_tokens", 1.5),
        ("max_num_partial_prefills", True),
        ("max_queued_requests", -1),
        ("num_cpu_blocks", 0),
        ("tpot_slo", 0.0),
        ("tpot_slo", float("nan")),
        ("step_estimate", "fast"),
        ("step_estimate", "0.02"),
        ("step_estimate", "0.02:-1"),
        ("step_estimate", "0.02:nan"),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_line_that_names_the_option(option: str, value: Any) -> None:
    with pytest.raises(InputError) as error:
        SchedulerConfig(**{option: value})
    assert str(error.value).startswith(f"--{option.replace('_', '-')} {value}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("admission", ["first-chunk", "full-prompt"])
def test_never_preempting_needs_all_blocks_at_admission(admission: Any) -> None:
    with pytest.raises(InputError, match="--preemption never needs --admission reserve-output"):
        SchedulerConfig(admission=admission, preemption="never")
    SchedulerConfig(admission="reserve-output", preemption="never")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preemption": "swap"}, "--preemption swap needs --num-cpu-blocks"),
        (
            {"preemption": "swap", "num_cpu_blocks": 4, "enable_prefix_caching": True},
            "--no-enable-prefix-caching",
        ),
        ({"tpot_slo": 0.05}, "--tpot-slo needs --step-estimate"),
        ({"early_rejection": "predicted"}, "--early-rejection predicted needs --step-estimate"),
        (
            {"enable_chunked_prefill": False, "max_num_prefill_tokens": 9},
            "--max-num-prefill-tokens cuts prompts",
        ),
        ({"enable_chunked_prefill": False, "max_num_partial_prefills": 9}, "needs chunked prefill"),
        ({"enable_chunked_prefill": False, "tpot_slo": 1, "step_estimate": "1:1"}, "needs chunked prefill"),
    ],
)
def test_options_that_need_or_exclude_each_other_say_so(options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SchedulerConfig(**options)


def test_static_batching_excludes_a_preemptive_policy() -> None:
    with pytest.raises(InputError, match="--batching static excludes a preemptive policy"):
        Scheduler(SchedulerConfig(batching="static"), make_policy("srpt"))
    Scheduler(SchedulerConfig(batching="static"), make_policy("srpt", {"preemptive": False}))


def test_the_configuration_survives_the_way_through_json() -> None:
    config = SchedulerConfig(
        max_model_len=4096,
        watermark=0.01,
        enable_prefix_caching=True,
        tpot_slo=0.05,
        step_estimate="0.02:5e-5",
    )
    assert SchedulerConfig(**json.loads(json.dumps(config.to_dict()))) == config
