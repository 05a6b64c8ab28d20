"""The scheduler's configuration: every limit and rule, checked once at construction."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from tinyllm.errors import InputError
from tinyllm.policy.estimate import StepEstimate

Admission = Literal["first-chunk", "prompt-fits", "full-prompt", "reserve-output"]
BlockRegistration = Literal["computed", "scheduled"]
Preemption = Literal["recompute", "swap", "never"]
BatchingName = Literal["mixed", "take-back", "prefill-first", "static"]
EarlyRejectionName = Literal["none", "expired", "predicted"]


_MOST = 2**31 - 1
"""Of anything counted: products of two such numbers still fit the log's columns."""

_COUNTS = ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_gpu_blocks")
_OPTIONAL_COUNTS = (
    "num_cpu_blocks",
    "max_num_prefill_tokens",
    "max_num_decode_tokens",
    "max_num_partial_prefills",
    "max_queued_requests",
)
_CHOICES: dict[str, Any] = {
    "admission": Admission,
    "register_blocks": BlockRegistration,
    "preemption": Preemption,
    "batching": BatchingName,
    "early_rejection": EarlyRejectionName,
}


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
        cap_lone_prefill: whether that limit holds for the only request there is, too (not in vLLM).
        enable_chunked_prefill: whether a prompt may be computed over several steps.
        enable_prefix_caching: whether full blocks are shared by equal content.
        register_blocks: when others can hit a full block: once it is computed or, as in vLLM, already when it
            is scheduled, so that prompts that are admitted in one step share.
        admission: for how many slots a request takes blocks when admitted: those of its first chunk,
            of all its tokens so far, or of its prompt and declared output; `prompt-fits` takes those of the first
            chunk where all its tokens so far would find room (vLLM).
        watermark: fraction of the pool that an admission leaves free, waived when nothing runs.
        preemption: `recompute` frees the victim's blocks, `swap` copies them to host memory (in simulation only);
            `never` needs `reserve-output`.
        num_cpu_blocks: host blocks for `swap`.
        batching: what a step may mix (`tinyllm.policy.batching`).
        max_num_prefill_tokens, max_num_decode_tokens: tokens of a step in each phase at most; None for no limit but
            the budget.
        max_num_partial_prefills: residents at most whose prompt a step leaves unfinished; None for no limit.
        tpot_slo: seconds from token to token; given, prefill chunks shrink so that decoding requests keep to it as
            far as `step_estimate` knows (`tinyllm.policy.chunking`).
        step_estimate: `StepEstimate.parse`'s text, for the decisions that need a belief of a step's time.
        max_queued_requests: waiting requests at most, a further one is refused; None for no limit.
        early_rejection: what becomes of requests that miss their first-token deadline (`tinyllm.policy.rejection`).

    Raises:
        InputError: a value out of range or two that exclude each other, by the option's name.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    num_gpu_blocks: int = 10_000
    max_model_len: int | None = None
    long_prefill_token_threshold: int = 0
    cap_lone_prefill: bool = True
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = False
    register_blocks: BlockRegistration = "computed"
    admission: Admission = "first-chunk"
    watermark: float = 0.0
    preemption: Preemption = "recompute"
    num_cpu_blocks: int | None = None
    batching: BatchingName = "mixed"
    max_num_prefill_tokens: int | None = None
    max_num_decode_tokens: int | None = None
    max_num_partial_prefills: int | None = None
    tpot_slo: float | None = None
    step_estimate: str | None = None
    max_queued_requests: int | None = None
    early_rejection: EarlyRejectionName = "none"

    def __post_init__(self) -> None:
        for option in _COUNTS + _OPTIONAL_COUNTS:
            value = getattr(self, option)
            in_range = _is_whole(value) and 1 <= value <= _MOST
            in_range = in_range or (value is None and option in _OPTIONAL_COUNTS)
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
        for option, choices in _CHOICES.items():
            value = getattr(self, option)
            _require(
                value in get_args(choices), option, value, f"choose one of {', '.join(get_args(choices))}"
            )
        _require(
            self.tpot_slo is None or 1e-9 <= self.tpot_slo <= 1e9,
            "tpot_slo",
            self.tpot_slo,
            "give seconds, more than 0 and at most 1e9",
        )
        self.estimate()
        self._check_together()

    def _check_together(self) -> None:
        """Refuse options that exclude or need each other."""
        if self.preemption == "never" and self.admission != "reserve-output":
            raise InputError(
                "--preemption never needs --admission reserve-output: "
                "only blocks taken at admission are sure to suffice"
            )
        if self.preemption == "swap" and self.num_cpu_blocks is None:
            raise InputError(
                "--preemption swap needs --num-cpu-blocks, the host blocks to swap to "
                "(--swap-space tells them only with --gpu)"
            )
        if self.preemption == "swap" and self.enable_prefix_caching:
            raise InputError("--preemption swap excludes the prefix cache: give --no-enable-prefix-caching")
        if self.batching == "take-back":
            for option in ("max_num_prefill_tokens", "max_num_decode_tokens", "tpot_slo"):
                if getattr(self, option) is not None:
                    raise InputError(f"--batching take-back excludes --{option.replace('_', '-')}")
        if not self.enable_chunked_prefill:
            for option in ("max_num_prefill_tokens", "max_num_partial_prefills", "tpot_slo"):
                if getattr(self, option) is not None:
                    raise InputError(f"--{option.replace('_', '-')} cuts prompts: it needs chunked prefill")
        for option, given in (
            ("tpot-slo", self.tpot_slo is not None),
            ("early-rejection predicted", self.early_rejection == "predicted"),
        ):
            if given and self.step_estimate is None:
                raise InputError(f"--{option} needs --step-estimate, e.g. 0.02:5e-5")

    def estimate(self) -> StepEstimate | None:
        """The belief of a step's time that was given."""
        return None if self.step_estimate is None else StepEstimate.parse(self.step_estimate)

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON-able values, for the manifest."""
        return asdict(self)
