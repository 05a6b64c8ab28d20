from __future__ import annotations

import pytest

from tinyllm.engine.sampling_params import SamplingParams
from tinyllm.errors import InputError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -2),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("presence_penalty", 2.5),
        ("frequency_penalty", float("nan")),
        ("seed", 2**64),
        ("stop", ["a", ""]),
        ("stop_token_ids", [3, -1]),
        ("logprobs", -1),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_name_of_its_field(field: str, value: object) -> None:
    with pytest.raises(InputError, match=f"sampling parameter {field} = "):
        SamplingParams(**{field: value})


def test_a_lone_stop_string_is_one_string_and_lists_become_tuples() -> None:
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[1]).stop_token_ids == (1,)  # type: ignore[arg-type]


def test_a_temperature_of_nearly_zero_is_greedy() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert SamplingParams(temperature=1e-6).is_greedy
    assert not SamplingParams(temperature=1e-5).is_greedy


def test_penalties_are_off_by_default_and_each_switches_them_on() -> None:
    assert not SamplingParams().has_penalties
    for field in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        assert SamplingParams(**{field: 0.5}).has_penalties
