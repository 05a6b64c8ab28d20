"""Rotary position embedding: the frequency rules by name, and the table of angles of a batch.

Angles are computed in float32, operation by operation as Transformers 5 does, so that positions far beyond the
original context agree as well. Sources: Su et al. 2021 (RoFormer); Peng et al. 2023 (YaRN); the LLaMA 3.1 release.
"""

from __future__ import annotations

import logging
import math
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from tinyllm.models.config import ConfigFile

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RopeConfig:
    """Plain rotary embedding; a scaled form is a subclass whose fields are the keys of its settings.

    Attributes:
        rope_theta: the base of the wavelengths.
    """

    rope_theta: float
    rope_type: ClassVar[str] = "default"

    @property
    def attention_scaling(self) -> float:
        """Factor on cosine and sine, by which a form may sharpen attention."""
        return 1.0

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        """Radians per position of each pair of channels: `[head_dim // 2]`, float32, on the CPU."""
        return 1.0 / self._wavelengths(head_dim)

    def _wavelengths(self, head_dim: int) -> Tensor:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
        return torch.pow(self.rope_theta, exponents)


@dataclass(frozen=True)
class LinearRope(RopeConfig):
    """Positions divided by `factor`."""

    factor: float
    rope_type: ClassVar[str] = "linear"

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        return super().inverse_frequencies(head_dim) / self.factor


@dataclass(frozen=True)
class Llama3Rope(RopeConfig):
    """Long wavelengths divided by `factor`, short ones kept, a smooth ramp between (LLaMA 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: float
    rope_type: ClassVar[str] = "llama3"

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        inv_freq = super().inverse_frequencies(head_dim)
        context = self.original_max_position_embeddings
        wavelengths = 2 * math.pi / inv_freq
        is_long = wavelengths > context / self.low_freq_factor
        is_short = wavelengths < context / self.high_freq_factor
        smooth = (context / wavelengths - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        ramp = (1 - smooth) * inv_freq / self.factor + smooth * inv_freq
        scaled = torch.where(is_long, inv_freq / self.factor, inv_freq)
        return torch.where(~is_long & ~is_short, ramp, scaled)


@dataclass(frozen=True)
class YarnRope(RopeConfig):
    """Interpolation below `beta_slow` rotations within the original context, none above `beta_fast` (YaRN)."""

    factor: float
    original_max_position_embeddings: float
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    rope_type: ClassVar[str] = "yarn"

    @property
    def attention_scaling(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
        return self._magnitude(1.0)

    def _magnitude(self, mscale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * mscale * math.log(self.factor) + 1.0

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        wavelengths = self._wavelengths(head_dim)
        low, high = self._correction_range(head_dim)
        channels = torch.arange(head_dim // 2, dtype=torch.float32, device="cpu")
        keep = 1 - torch.clamp((channels - low) / (high - low), 0, 1)
        return 1.0 / (self.factor * wavelengths) * (1 - keep) + 1.0 / wavelengths * keep

    def _correction_range(self, head_dim: int) -> tuple[float, float]:
        def channel(rotations: float) -> float:
            turns = self.original_max_position_embeddings / (rotations * 2 * math.pi)
            return (head_dim * math.log(turns)) / (2 * math.log(self.rope_theta))

        low, high = channel(self.beta_fast), channel(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        return low, high if high != low else high + 0.001


ROPE_TYPES: Final[dict[str, type[RopeConfig]]] = {
    form.rope_type: form for form in (RopeConfig, LinearRope, Llama3Rope, YarnRope)
}


def parse_rope(file: ConfigFile, max_position_embeddings: int) -> RopeConfig:
    """Read the rope settings in the form of Transformers 5 (`rope_parameters`) or the older one.

    The older form is `rope_theta` beside an optional `rope_scaling`, whose type may be called `type`.

    Raises:
        InputError: the type is unknown, or a setting that it needs is missing or not a positive number.
    """
    key = "rope_scaling" if file.values.get("rope_scaling") else "rope_parameters"
    section = file.section(key)
    rope_type = section.values.get("rope_type", section.values.get("type", "default"))
    if rope_type not in ROPE_TYPES:
        raise section.error(
            f"rope type {rope_type!r} is not supported", f"use one of {', '.join(ROPE_TYPES)}"
        )
    if section.number("partial_rotary_factor", file.number("partial_rotary_factor", 1.0)) != 1.0:
        raise section.error("partial_rotary_factor is not supported", "only 1.0 is")
    form = ROPE_TYPES[rope_type]
    _check_keys(section, key, form)

    context = file.integer("original_max_position_embeddings", 0) or section.integer(
        "original_max_position_embeddings", max_position_embeddings
    )
    fallbacks: dict[str, Any] = {
        "rope_theta": file.number("rope_theta", 10_000.0),
        "original_max_position_embeddings": context,
    }
    if rope_type == "yarn":
        fallbacks["factor"] = max_position_embeddings / context
    settings: dict[str, Any] = {}
    for field in fields(form):
        fallback = fallbacks.get(field.name, field.default)
        if isinstance(fallback, bool):
            settings[field.name] = section.flag(field.name, fallback)
        elif fallback is None and section.values.get(field.name) is None:
            settings[field.name] = None
        else:
            settings[field.name] = section.number(field.name, None if fallback is MISSING else fallback)
    return form(**settings)


def _check_keys(section: ConfigFile, key: str, form: type[RopeConfig]) -> None:
    known = {"rope_type", "type", "partial_rotary_factor", "original_max_position_embeddings"}
    for name in sorted(section.values.keys() - known - {field.name for field in fields(form)}):
        # Settings for each layer type in an object of its own: read as one, they would all be lost.
        if isinstance(section.values[name], dict):
            raise section.error(f"{key}.{name} is an object", "rope settings by layer type are not supported")
        logger.warning("%s: rope type %s has no setting %s, ignored", section.path, form.rope_type, name)


class RotaryEmbedding(nn.Module):
    """Turns positions into the cosines and sines with which `rotate` turns queries and keys."""

    inv_freq: Tensor

    def __init__(self, config: RopeConfig, head_dim: int) -> None:
        super().__init__()
        inv_freq = config.inverse_frequencies(head_dim).to(torch.get_default_device())
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.scaling = config.attention_scaling

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine of `positions [num_tokens]`: each `[num_tokens, 1, head_dim // 2]` of `dtype`."""
        angles = (positions[:, None].float() * self.inv_freq)[:, None]
        return (angles.cos() * self.scaling).to(dtype), (angles.sin() * self.scaling).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate channel pairs (i, i + head_dim / 2) of `x [num_tokens, heads, head_dim]` by the given angles."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
