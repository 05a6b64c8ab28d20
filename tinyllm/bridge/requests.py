"""vLLM's requests as a policy sees them."""

from __future__ import annotations

from typing import Any, Final

from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.errors import InputError

EXTRA_ARGS: Final = "tinyllm"
"""Key in `SamplingParams.extra_args` (`vllm_xargs` over HTTP) under which a client says what vLLM has no field for."""

_KNOWN: Final = frozenset(ArrivalRecord.__dataclass_fields__) - {"prompt_tokens", "prefix_ids"}


def record_from(request: Any, index: int, arrival_ns: int) -> tuple[ArrivalRecord, int]:
    """The arrival record of a vLLM request, and when it was submitted, ns.

    Args:
        request: vLLM's; `extra_args["tinyllm"]` may hold fields of the record, such as `tenant` or
            `predicted_output_tokens`, and `submitted_ns`.
        index: of the request among all, for those that have no row of a trace.
        arrival_ns: its arrival on the scheduler's clock.

    Raises:
        InputError: an unknown field.
    """
    params = request.sampling_params
    given = dict((params.extra_args or {}).get(EXTRA_ARGS, {})) if params is not None else {}
    submitted = given.pop("submitted_ns", None)
    if unknown := sorted(given.keys() - _KNOWN):
        raise InputError(
            f"extra_args: {EXTRA_ARGS}.{unknown[0]}: unknown; choose from {', '.join(sorted(_KNOWN))}"
        )
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
