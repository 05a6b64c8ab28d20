"""The product of every size equals torch's, whichever way it goes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyllm.models.matmul import MEDIUM, SMALL, multiply
from tinyllm.models.small_matmul import add_small_matmul, small_matmul

ROWS = st.one_of(st.integers(0, 2 * SMALL), st.integers(MEDIUM - 2, MEDIUM + 2))
SIZES = st.integers(1, 40)


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None)
@given(ROWS, SIZES, SIZES, st.booleans(), st.integers(0, 99))
def test_it_is_the_linear_map_for_any_number_of_rows(
    rows: int, k: int, n: int, biased: bool, seed: int
) -> None:
    x, weight = draw(seed, rows, k), draw(seed + 1, n, k)
    bias = draw(seed + 2, n) if biased else None
    product = multiply(x, weight, bias)
    assert product.shape == (rows, n)
    assert torch.allclose(product, torch.nn.functional.linear(x, weight, bias), atol=1e-4)


@settings(deadline=None)
@given(ROWS, SIZES, SIZES, st.integers(0, 99))
def test_the_kernel_adds_to_what_is_there(rows: int, k: int, n: int, seed: int) -> None:
    x, weight, out = draw(seed, rows, k), draw(seed + 1, n, k), draw(seed + 2, rows, n)
    expected = out + x @ weight.T
    add_small_matmul(x.numpy(), weight.numpy(), out.numpy())
    assert torch.allclose(out, expected, atol=1e-4)


def test_a_strided_view_is_multiplied_like_its_copy() -> None:
    wide, weight = draw(0, 5, 24), draw(1, 7, 8)
    for view in (wide[:, 8:16], draw(2, 8, 5).t()):
        assert torch.allclose(multiply(view, weight, None), view @ weight.T, atol=1e-5)


def test_values_that_are_no_numbers_stay_what_they_are() -> None:
    weight = torch.eye(8)
    for rows in (1, 4, 8, SMALL + 1):
        x = torch.zeros(rows, 8)
        x[0, 3], x[-1, 5] = float("nan"), float("inf")
        assert torch.isnan(multiply(x, weight, None)[0]).all()
    out = torch.empty(2, 3).numpy()
    small_matmul(torch.full((2, 4), float("inf")).numpy(), torch.ones(3, 4).numpy(), out)
    assert (out == float("inf")).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_go_the_library_s_way(dtype: torch.dtype) -> None:
    x, weight = draw(0, 3, 16).to(dtype), draw(1, 5, 16).to(dtype)
    assert torch.equal(multiply(x, weight, None), torch.nn.functional.linear(x, weight))
