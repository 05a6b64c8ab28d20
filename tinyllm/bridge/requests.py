"""vLLM's requests as a policy sees them."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from tinyllm.engine.record.workload import ArrivalRecord

EXTRA_ARGS: Final = "tinyllm"
"""Key in `SamplingParams.extra_args` under which a client says what vLLM has no field for: a dictionary, or over HTTP,
in `vllm_xargs`, the same as JSON text."""

_TEXTS: Final = ("request_id", "tenant", "session")
_NUMBERS: Final = (
    "source_row",
    "arrival_ns",
    "submitted_ns",
    "max_tokens",
    "target_output_tokens",
    "predicted_output_tokens",
    "priority",
    "ttft_deadline_ns",
    "e2e_deadline_ns",
)
_TYPES: Final[dict[str, type]] = dict.fromkeys(_TEXTS, str) | dict.fromkeys(_NUMBERS, int) | {"warmup": bool}

_logger = logging.getLogger("vllm.tinyllm")


def record_from(request: Any, index: int, arrival_ns: int) -> tuple[ArrivalRecord, int]:
    """The arrival record of a vLLM request, and when it was submitted, ns.

    Args:
        request: vLLM's; `extra_args["tinyllm"]` may hold fields of the record, such as `tenant` or
            `predicted_output_tokens`, and `submitted_ns`. What is wrong with them is logged and left out: a client
            must not be able to end the engine.
        index: of the request among all, for those that have no row of a trace.
        arrival_ns: its arrival on the scheduler's clock.
    """
    given = _given(request)
    submitted = given.pop("submitted_ns", None)
    fields = {
        "request_id": request.request_id,
        "source_row": index,
        "arrival_ns": arrival_ns,
        "max_tokens": request.max_tokens,
        "target_output_tokens": request.max_tokens,
        "priority": request.priority,
        "session": request.session_id,
    }
    record = ArrivalRecord(prompt_tokens=request.num_prompt_tokens, **(fields | given))
    return record, record.arrival_ns if submitted is None else submitted


def _given(request: Any) -> dict[str, Any]:
    params = request.sampling_params
    given = (params.extra_args or {}).get(EXTRA_ARGS, {}) if params is not None else {}
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = None
    if not isinstance(given, dict):
        _logger.warning("%s: extra_args.%s is no JSON object, left out", request.request_id, EXTRA_ARGS)
        return {}
    right = {name: value for name, value in given.items() if type(value) is _TYPES.get(name)}
    for name in given.keys() - right.keys():
        _logger.warning("%s: extra_args.%s.%s left out", request.request_id, EXTRA_ARGS, name)
    return right
