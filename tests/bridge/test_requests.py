"""What clients of a vLLM server may say of a request, and what they can't break with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tinyllm.bridge.requests import record_from
from tinyllm.engine.record.workload import ArrivalRecord


def request(given: Any) -> SimpleNamespace:
    """A request as vLLM holds it."""
    return SimpleNamespace(
        request_id="cmpl-1",
        sampling_params=SimpleNamespace(extra_args=given),
        max_tokens=9,
        num_prompt_tokens=4,
        priority=2,
        session_id="s",
    )


def test_without_a_word_of_its_client_a_request_is_what_vllm_says_it_is() -> None:
    expected = ArrivalRecord("cmpl-1", 7, 30, 4, 9, 9, priority=2, session="s")
    for given in (None, {}, {"other": 1}):
        assert record_from(request(given), 7, 30) == (expected, 30)


@pytest.mark.parametrize("form", ["object", "text"])
def test_a_client_names_tenant_and_prediction_as_an_object_or_as_json_text(form: str) -> None:
    given: Any = {"tenant": "a", "predicted_output_tokens": 5, "submitted_ns": 3}
    if form == "text":
        given = '{"tenant": "a", "predicted_output_tokens": 5, "submitted_ns": 3}'
    record, submitted = record_from(request({"tinyllm": given}), 0, 30)
    assert (record.tenant, record.predicted_output_tokens, submitted) == ("a", 5, 3)


@pytest.mark.parametrize(
    "given",
    ["{", "[1]", 5, {"tenent": "a"}, {"tenant": 3}, {"predicted_output_tokens": "many"}, {"priority": True}],
)
def test_what_a_client_says_wrongly_is_left_out_and_ends_nothing(given: Any) -> None:
    assert record_from(request({"tinyllm": given}), 7, 30) == record_from(request(None), 7, 30)
