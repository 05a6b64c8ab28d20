"""A format keeps every bit of a weight, and a product with it is the product with the weight in float32, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyllm.models.formats import FORMATS, BFloat16, BlockCodes, Float32
from tinyllm.models.formats.base import PANEL, PanelFormat
from tinyllm.models.matmul import multiply, pack, rows_of
from tinyllm.models.panels import Means, gated_panel_matmul

gguf = pytest.importorskip("gguf")

GGUF_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
SEEDS = st.integers(0, 999)
ROWS = st.one_of(st.integers(1, 30), st.sampled_from([97, 500]))
BLOCKS = st.one_of(st.integers(1, 8), st.sampled_from([18, 28, 48, 53]))


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def in_bfloat16(weight: torch.Tensor) -> torch.Tensor:
    return weight.bfloat16().float()


def in_gguf(weight: torch.Tensor, name: str) -> torch.Tensor:
    """What a GGUF file of that type makes of a weight."""
    kind = getattr(gguf.GGMLQuantizationType, name)
    return torch.from_numpy(gguf.dequantize(gguf.quantize(weight.numpy(), kind), kind))


def packed(weight: torch.Tensor, is_compact: bool = True) -> tuple[torch.Tensor, PanelFormat]:
    parameter = torch.nn.Parameter(weight, requires_grad=False)
    stored_as = pack([parameter], is_compact)
    return parameter.data, stored_as


def test_each_format_has_a_type_of_its_own_and_the_narrowest_comes_first() -> None:
    assert len({each.dtype for each in FORMATS}) == len(FORMATS)
    bytes_of = [np.prod(each.shape(1, 64)) * each.dtype.itemsize for each in FORMATS]
    assert bytes_of == sorted(bytes_of) and isinstance(FORMATS[-1], Float32)


@settings(deadline=None)
@given(st.sampled_from([*GGUF_TYPES, "bfloat16", "float32"]), st.integers(1, 40), BLOCKS, ROWS, SEEDS)
def test_a_product_is_the_same_to_the_bit_in_any_format(
    name: str, n: int, blocks: int, rows: int, seed: int
) -> None:
    k = 32 * blocks
    weight, x = draw(seed, n, k), draw(seed + 1, rows, k)
    if name == "bfloat16":
        weight = in_bfloat16(weight)
    elif name != "float32":
        weight = in_gguf(weight, name)
    compact, stored_as = packed(weight)
    plain, _ = packed(weight, is_compact=False)
    assert stored_as.name == (name if name in ("bfloat16", "float32") else "codes")
    assert torch.equal(rows_of(compact, torch.arange(n), k), weight)
    assert torch.equal(multiply(x, compact, None, n), multiply(x, plain, None, n))
    assert torch.allclose(multiply(x, compact, None, n), x @ weight.T, atol=1e-3)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(["Q4_1", "bfloat16"]), st.integers(1, 3), BLOCKS, ROWS, SEEDS)
def test_so_is_the_gated_product(name: str, num_panels: int, blocks: int, rows: int, seed: int) -> None:
    k, n = 32 * blocks, num_panels * PANEL
    weight, x = draw(seed, 2 * n, k), draw(seed + 1, rows, k)
    weight = in_bfloat16(weight) if name == "bfloat16" else in_gguf(weight, name)
    outs = []
    for is_compact in (True, False):
        out = torch.full((rows, n), float("nan"))
        panels, no_bias = packed(weight, is_compact)[0], np.empty(0, np.float32)
        gated_panel_matmul(x.numpy(), panels.numpy(), no_bias, out.numpy(), Means.of(panels.dtype))
        outs.append(out)
    assert torch.equal(*outs)


@given(st.integers(0, 39), st.integers(0, 63), st.sampled_from(GGUF_TYPES), SEEDS)
def test_one_other_number_and_it_is_float32(row: int, channel: int, name: str, seed: int) -> None:
    weight = in_gguf(draw(seed, 40, 64), name)
    weight[row, channel] = weight[row, channel].nextafter(torch.tensor(9.0))
    compact, stored_as = packed(weight)
    assert isinstance(stored_as, Float32)
    assert torch.equal(rows_of(compact, torch.arange(40), 64), weight)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30, 0.0, -0.0, 1e-30])
def test_blocks_of_one_number(value: float) -> None:
    weight = torch.full((16, 32), value)
    compact, _ = packed(weight)
    assert torch.equal(rows_of(compact, torch.arange(16), 32).nan_to_num(7.0), weight.nan_to_num(7.0))


def test_all_weights_of_a_call_share_a_format() -> None:
    weights = [in_gguf(draw(0, 16, 64), "Q4_1"), in_bfloat16(draw(1, 16, 64))]
    for chosen, expected in ((weights[:1], BlockCodes), (weights[1:], BFloat16), (weights, Float32)):
        parameters = [torch.nn.Parameter(weight, requires_grad=False) for weight in chosen]
        assert isinstance(pack(parameters), expected)
        for parameter, weight in zip(parameters, chosen, strict=True):
            assert torch.equal(rows_of(parameter.data, torch.arange(16), 64), weight)


def test_sizes_that_a_format_cannot_hold() -> None:
    assert isinstance(packed(in_gguf(draw(0, 16, 32), "Q8_0")[:, :24])[1], Float32)
    assert isinstance(packed(in_bfloat16(draw(0, 16, 24)))[1], BFloat16)
    assert isinstance(packed(in_bfloat16(draw(0, 16, 27)))[1], Float32)
