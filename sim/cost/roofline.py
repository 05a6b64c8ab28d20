"""The roofline cost model: step time of a dense decoder on a GPU from its peaks and fitted efficiencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self, TypeVar

from sim.cost.base import StepShape, round_ns
from sim.cost.kernels import Kernels
from sim.hardware import GPU, gpu_by_name
from sim.shapes import ModelShape, dtype_bytes, shape_by_name
from sim.spec import build, require_non_negative, require_positive
from tinyllm.errors import InputError

T = TypeVar("T")

# An engine repeats a few thousand batch sizes at most; a memo without a bound could still be fed any.
_MEMO_LIMIT: Final = 1 << 16


@dataclass(frozen=True)
class RooflineCostModel:
    """Formulas, constants and sources: docs/cost-models.md.

    Attributes:
        gpu, model_shape: the hardware and the model.
        dtype: of weights, activations and KV cache: bfloat16, float16 or float32.
        tp: tensor parallel degree; every GPU does 1/tp of each sharded product.
        step_overhead_s, layer_overhead_s, seq_overhead_s: host time of a step, a layer, a sequence. They were
            fitted on the whole period of a decode step, so the gap between steps is in them already.
        gap_s: further host time between steps, 0 unless measured.
        block_size: tokens of a KV block, for the copies of swapping.

    Raises:
        InputError: a degree that the model cannot be divided by, an unknown dtype, a negative overhead.
    """

    gpu: GPU
    model_shape: ModelShape
    dtype: str = "bfloat16"
    tp: int = 1
    step_overhead_s: float = 126e-6
    layer_overhead_s: float = 32e-6
    seq_overhead_s: float = 4.4e-6
    gap_s: float = 0.0
    block_size: int = 16
    _kernels: Kernels = field(init=False, repr=False, compare=False)
    _by_tokens: dict[int, float] = field(init=False, repr=False, compare=False, default_factory=dict)
    _by_sampled: dict[int, float] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.model_shape.check_tp(self.tp)
        require_non_negative(self, "step_overhead_s", "layer_overhead_s", "seq_overhead_s", "gap_s")
        require_positive(self, "block_size")
        kernels = Kernels(self.gpu, self.model_shape, dtype_bytes(self.dtype), self.tp, self.block_size)
        object.__setattr__(self, "_kernels", kernels)

    def step_ns(self, batch: StepShape) -> int:
        num_tokens, num_sampled = batch.num_tokens, batch.num_sampled
        decode_seqs, prefill_seqs = batch.decode_seqs, batch.prefill_seqs
        seconds = self._by_tokens.get(num_tokens) or self._token_seconds(num_tokens)
        seconds += self.seq_overhead_s * (decode_seqs + prefill_seqs)
        if num_sampled:
            seconds += self._by_sampled.get(num_sampled) or self._lm_head_seconds(num_sampled)
        if decode_seqs:
            seconds += self._kernels.decode_attention(decode_seqs, batch.decode_context_tokens)
        if prefill_seqs:
            seconds += self._kernels.prefill_attention(
                batch.prefill_tokens, batch.prefill_attention_pairs, batch.prefill_context_tokens
            )
        if swapped := max(batch.swapped_out_blocks, batch.swapped_in_blocks):
            seconds += self._kernels.swap(swapped)
        return round_ns(seconds * 1e9) or 1

    def gap_ns(self, batch: StepShape) -> int:
        return round_ns(self.gap_s * 1e9)

    def breakdown(self, batch: StepShape) -> dict[str, float]:
        kernels, num_seqs = self._kernels, batch.decode_seqs + batch.prefill_seqs
        decode = prefill = lm_head = 0.0
        if batch.decode_seqs:
            decode = kernels.decode_attention(batch.decode_seqs, batch.decode_context_tokens)
        if batch.prefill_seqs:
            prefill = kernels.prefill_attention(
                batch.prefill_tokens, batch.prefill_attention_pairs, batch.prefill_context_tokens
            )
        if batch.num_sampled:
            lm_head = kernels.lm_head(batch.num_sampled)
        return {
            "host": self._fixed_host_s + self.seq_overhead_s * num_seqs,
            "gemm": kernels.gemms(batch.num_tokens),
            "decode_attention": decode,
            "prefill_attention": prefill,
            "lm_head": lm_head,
            "allreduce": kernels.allreduces(batch.num_tokens),
            "swap": kernels.swap(max(batch.swapped_out_blocks, batch.swapped_in_blocks)),
        }

    def describe(self) -> dict[str, Any]:
        # The constants themselves and not only the names, so that a manifest outlives a new fit.
        record = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        record["gpu"], record["model_shape"] = asdict(self.gpu), asdict(self.model_shape)
        return {"kind": "roofline", **record}

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any], source: str) -> Self:
        """`gpu` and `model_shape` are names (a shape also a path to a config.json) or objects of constants."""
        return build(cls, spec, source, nested={"gpu": _read_gpu, "model_shape": _read_shape})

    def _token_seconds(self, num_tokens: int) -> float:
        seconds = self._fixed_host_s + self._kernels.gemms(num_tokens) + self._kernels.allreduces(num_tokens)
        return _remember(self._by_tokens, num_tokens, seconds)

    def _lm_head_seconds(self, num_sampled: int) -> float:
        return _remember(self._by_sampled, num_sampled, self._kernels.lm_head(num_sampled))

    @property
    def _fixed_host_s(self) -> float:
        return self.step_overhead_s + self.layer_overhead_s * self.model_shape.num_layers


def _remember(memo: dict[int, float], key: int, value: float) -> float:
    if len(memo) < _MEMO_LIMIT:
        memo[key] = value
    return value


def _read_gpu(value: object, where: str) -> GPU:
    return build(GPU, value, where) if isinstance(value, Mapping) else _look_up(gpu_by_name, value, where)


def _read_shape(value: object, where: str) -> ModelShape:
    if isinstance(value, Mapping):
        return build(ModelShape, value, where)
    return _look_up(shape_by_name, value, where)


def _look_up(by_name: Callable[[str], T], value: object, where: str) -> T:
    if not isinstance(value, str):
        raise InputError(f"{where} is {value!r}; it must be a name or an object")
    try:
        return by_name(value)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
