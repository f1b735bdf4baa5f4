"""The rule accepts what rounds alike and catches what does not."""

import pytest
import torch
from torch import Tensor

from lamina.testing import assert_as_accurate


@pytest.fixture
def product() -> tuple[Tensor, Tensor, Tensor]:
    """The same matrix product summed in another order, by torch, and in float64."""
    a, b = torch.randn(40, 300), torch.randn(300, 30)
    ours = a[:, 150:] @ b[150:] + a[:, :150] @ b[:150]
    return ours, a @ b, a.double() @ b.double()


def test_another_order_of_summing_is_accurate(product: tuple[Tensor, Tensor, Tensor]) -> None:
    assert_as_accurate(*product)


def test_one_wrong_element_is_named(product: tuple[Tensor, Tensor, Tensor]) -> None:
    ours, plain, exact = product
    ours[3, 7] += 1e-3
    with pytest.raises(AssertionError, match=r"\[3, 7\]"):
        assert_as_accurate(ours, plain, exact)


def test_a_small_error_everywhere_fails_on_average(product: tuple[Tensor, Tensor, Tensor]) -> None:
    _, plain, exact = product
    shifted = (exact + 1.5 * (plain - exact).abs().max()).float()
    with pytest.raises(AssertionError, match="mean error"):
        assert_as_accurate(shifted, plain, exact)


def test_nan_and_unwritten_elements_fail(product: tuple[Tensor, Tensor, Tensor]) -> None:
    ours, plain, exact = product
    ours[0, 0] = float("nan")
    with pytest.raises(AssertionError, match=r"\[0, 0\]"):
        assert_as_accurate(ours, plain, exact)


def test_a_lower_precision_is_rejected(product: tuple[Tensor, Tensor, Tensor]) -> None:
    ours, plain, exact = product
    with pytest.raises(AssertionError, match="expected torch.float32"):
        assert_as_accurate(ours.half(), plain, exact)


def test_stated_factors_widen_the_rule(product: tuple[Tensor, Tensor, Tensor]) -> None:
    _, plain, exact = product
    coarse = exact + 5 * (plain.double() - exact)
    with pytest.raises(AssertionError):
        assert_as_accurate(coarse.float(), plain, exact)
    assert_as_accurate(coarse.float(), plain, exact, worst=6, mean=6)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_small_row_or_column_has_a_bound_of_its_own(axis: int) -> None:
    a, b = torch.randn(40, 300), torch.randn(300, 30)
    (a[5] if axis == 0 else b[:, 5]).mul_(1e-6)
    plain, exact = a @ b, a.double() @ b.double()
    assert_as_accurate(plain.clone(), plain, exact)
    ours = plain.clone()
    ours.select(axis, 5).mul_(1.01)  # an error far below the rounding of the large ones
    with pytest.raises(AssertionError, match=f"{('row', 'column')[axis]} 5: relative error 0.01"):
        assert_as_accurate(ours, plain, exact)
