"""The product of every size equals torch's, plain or packed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyllm.models.formats.base import PANEL
from tinyllm.models.matmul import can_pack, multiply, pack, rows_of, stacked
from tinyllm.models.panels import Means, gated_panel_matmul, panel_matmul

ROWS = st.one_of(st.integers(0, 30), st.integers(90, 130))
SIZES = st.integers(1, 70)
SEEDS = st.integers(0, 99)


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def in_panels(weight: torch.Tensor) -> torch.Tensor:
    assert can_pack(weight)
    packed = torch.nn.Parameter(weight, requires_grad=False)
    pack([packed])
    return packed.data


@settings(deadline=None)
@given(ROWS, SIZES, SIZES, st.booleans(), SEEDS)
def test_it_is_the_linear_map_for_any_number_of_rows(
    rows: int, k: int, n: int, biased: bool, seed: int
) -> None:
    x, weight = draw(seed, rows, k), draw(seed + 1, n, k)
    bias = draw(seed + 2, n) if biased else None
    for form in (weight, in_panels(weight)):
        product = multiply(x, form, bias, n)
        assert product.shape == (rows, n)
        assert torch.allclose(product, torch.nn.functional.linear(x, weight, bias), atol=1e-4)


@pytest.mark.parametrize(("rows", "k"), [(150, 4000), (151, 4000), (5, 200_000), (3, 300_000)])
def test_more_rows_than_a_block_of_them(rows: int, k: int) -> None:
    x, weight = draw(0, rows, k), draw(1, 32, k) / k**0.5
    panels, n = in_panels(weight), PANEL
    expected = x @ weight.T
    assert torch.allclose(multiply(x, panels, None, 2 * n), expected, atol=1e-3)
    out = torch.full((rows, n), float("nan"))
    gated_panel_matmul(
        x.numpy(), panels.numpy(), torch.empty(0).numpy(), out.numpy(), Means.of(torch.float32)
    )
    assert torch.allclose(out, torch.nn.functional.silu(expected[:, :n]) * expected[:, n:], atol=1e-3)


@settings(deadline=None)
@given(ROWS, SIZES, st.integers(1, 3), SEEDS)
def test_a_product_adds_to_what_is_there(rows: int, k: int, num_panels: int, seed: int) -> None:
    n = num_panels * PANEL
    x, weight, out = draw(seed, rows, k), draw(seed + 1, n, k), draw(seed + 2, rows, n)
    expected = out + x @ weight.T
    panel_matmul(x.numpy(), in_panels(weight).numpy(), out.numpy(), 1, Means.of(torch.float32))
    assert torch.allclose(out, expected, atol=1e-4)


@settings(deadline=None)
@given(ROWS, SIZES, st.integers(1, 3), st.booleans(), SEEDS)
def test_the_gated_product_is_silu_of_one_half_times_the_other(
    rows: int, k: int, num_panels: int, biased: bool, seed: int
) -> None:
    n = num_panels * PANEL
    x, weight = draw(seed, rows, k), draw(seed + 1, 2 * n, k)
    bias = draw(seed + 2, 2 * n) if biased else torch.empty(0)
    gate, up = (x @ weight.T + (bias if biased else 0)).chunk(2, dim=1)
    out = torch.full((rows, n), float("nan"))
    gated_panel_matmul(
        x.numpy(), in_panels(weight).numpy(), bias.numpy(), out.numpy(), Means.of(torch.float32)
    )
    assert torch.allclose(out, torch.nn.functional.silu(gate) * up, rtol=1e-4, atol=1e-4)


@settings(deadline=None)
@given(st.integers(1, 50), SIZES, st.lists(st.integers(0, 49), max_size=5), SEEDS)
def test_rows_are_looked_up_in_panels_too(n: int, k: int, wanted: list[int], seed: int) -> None:
    weight, indices = draw(seed, n, k), torch.tensor([index % n for index in wanted], dtype=torch.int64)
    assert torch.equal(rows_of(in_panels(weight), indices, k), weight[indices])


def test_a_row_that_is_not_there_is_an_error() -> None:
    panels = in_panels(draw(0, 20, 3))
    for index in (-1, 32):
        with pytest.raises(IndexError):
            rows_of(panels, torch.tensor([0, index]), 3)


def test_several_weights_lie_one_after_the_other() -> None:
    weights = [draw(seed, 17 + seed, 5) for seed in range(4)]
    packed = [torch.nn.Parameter(weight, requires_grad=False) for weight in weights]
    pack(packed)
    for weight, panels in zip(weights, packed, strict=True):
        assert torch.equal(rows_of(panels, torch.arange(len(weight)), 5), weight)


def test_a_strided_view_is_multiplied_like_its_copy() -> None:
    wide, weight = draw(0, 5, 24), draw(1, 7, 8)
    for view in (wide[:, 8:16], draw(2, 8, 5).t()):
        assert torch.allclose(multiply(view, in_panels(weight), None, 7), view @ weight.T, atol=1e-5)


def test_values_that_are_no_numbers_stay_what_they_are() -> None:
    weight = torch.eye(8)
    for rows in (1, 4, 8, 17):
        x = torch.zeros(rows, 8)
        x[0, 3], x[-1, 5] = float("nan"), float("inf")
        assert torch.isnan(multiply(x, in_panels(weight), None, 8)[0]).all()
    infinite = multiply(torch.full((2, 4), float("inf")), in_panels(torch.ones(3, 4)), None, 3)
    assert (infinite == float("inf")).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_go_the_library_s_way(dtype: torch.dtype) -> None:
    x, weight = draw(0, 3, 16).to(dtype), draw(1, 5, 16).to(dtype)
    assert not can_pack(weight)
    assert torch.equal(multiply(x, weight, None, 5), torch.nn.functional.linear(x, weight))


def test_what_was_packed_together_is_one_tensor_of_all_layers_where_it_lies() -> None:
    weights = [torch.nn.Parameter(torch.randn(32, 8), requires_grad=False) for _ in range(3)]
    pack(weights)
    together = stacked(weights)
    assert together.data_ptr() == weights[0].data_ptr() and together.is_contiguous()
    assert torch.equal(together, torch.stack([each.data for each in weights]))


def test_what_was_packed_apart_is_not() -> None:
    weights = [torch.nn.Parameter(torch.randn(32, 8), requires_grad=False) for _ in range(2)]
    for weight in weights:
        pack([weight])
    with pytest.raises(ValueError, match="one after the other"):
        stacked(weights)
