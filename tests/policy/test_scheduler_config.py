from __future__ import annotations

import json
from typing import Any

import pytest

from tinyllm.errors import InputError
from tinyllm.policy import SchedulerConfig


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
        ("preemption", "swap"),
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


def test_the_configuration_survives_the_way_through_json() -> None:
    config = SchedulerConfig(max_model_len=4096, watermark=0.01, enable_prefix_caching=True)
    assert SchedulerConfig(**json.loads(json.dumps(config.to_dict()))) == config
