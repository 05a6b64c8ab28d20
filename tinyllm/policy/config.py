"""The scheduler's configuration: every limit and rule, checked once at construction."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from tinyllm.errors import InputError

Admission = Literal["first-chunk", "full-prompt", "reserve-output"]
Preemption = Literal["recompute", "never"]


_MOST = 2**31 - 1
"""Of anything counted: products of two such numbers still fit the log's columns."""


def _require(ok: bool, option: str, value: object, mend: str) -> None:
    if not ok:
        raise InputError(f"--{option.replace('_', '-')} {value}: {mend}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of a step, of the pool and of a sequence, and the rules of admission and preemption.

    Attributes:
        max_num_seqs: resident (running) requests at most.
        max_num_batched_tokens: token budget of one step.
        block_size: tokens in a KV block.
        num_gpu_blocks: KV blocks in the pool.
        max_model_len: tokens of prompt and output at most; None for no limit.
        long_prefill_token_threshold: tokens of one prefill chunk at most; 0 for no limit but the budget.
        enable_chunked_prefill: whether a prompt may be computed over several steps.
        enable_prefix_caching: whether full blocks are shared by equal content.
        admission: for how many slots a request takes blocks when admitted: those of its first chunk,
            of all its tokens so far, or of its prompt and declared output.
        watermark: fraction of the pool that an admission leaves free, waived when nothing runs.
        preemption: `recompute` frees the victim's blocks; `never` needs `reserve-output`.

    Raises:
        InputError: a value out of range or two that exclude each other, by the option's name.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    num_gpu_blocks: int = 10_000
    max_model_len: int | None = None
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = False
    admission: Admission = "first-chunk"
    watermark: float = 0.0
    preemption: Preemption = "recompute"

    def __post_init__(self) -> None:
        for option in ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_gpu_blocks"):
            value = getattr(self, option)
            in_range = _is_whole(value) and 1 <= value <= _MOST
            _require(in_range, option, value, "give a whole number of at least 1 (and below 2^31)")
        _require(
            self.max_model_len is None
            or (_is_whole(self.max_model_len) and 2 <= self.max_model_len <= _MOST),
            "max_model_len",
            self.max_model_len,
            "give at least 2 (and below 2^31): one prompt token and one output token",
        )
        _require(
            _is_whole(self.long_prefill_token_threshold) and self.long_prefill_token_threshold >= 0,
            "long_prefill_token_threshold",
            self.long_prefill_token_threshold,
            "give 0 (no limit) or a number of tokens",
        )
        _require(
            isinstance(self.watermark, int | float) and 0.0 <= self.watermark < 1.0,
            "watermark",
            self.watermark,
            "give a fraction in [0, 1)",
        )
        for option, choices in (("admission", get_args(Admission)), ("preemption", get_args(Preemption))):
            value = getattr(self, option)
            _require(value in choices, option, value, f"choose one of {', '.join(choices)}")
        if self.preemption == "never" and self.admission != "reserve-output":
            raise InputError(
                "--preemption never needs --admission reserve-output: "
                "only blocks taken at admission are sure to suffice"
            )

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON-able values, for the manifest."""
        return asdict(self)
