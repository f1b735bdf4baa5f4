import math
from typing import no_type_check

import pytest
import torch
import triton
import triton.language as tl

from lamina.accelerate.common.split_fp16 import kernels, ops, reference
from lamina.accelerate.runtime.launch import launch

pytestmark = pytest.mark.usefixtures("where_kernels_run")


@triton.jit
@no_type_check
def scale_kernel(partial_amax, out, SHARES: tl.constexpr, TARGET_EXPONENT: tl.constexpr):
    up, down = kernels.scale(partial_amax, SHARES, TARGET_EXPONENT)
    tl.store(out, up)
    tl.store(out + 1, down)


def scales(x: torch.Tensor) -> tuple[float, float]:
    partial_amax, out = ops.partial_amax(x), x.new_full((2,), math.nan, dtype=torch.float32)
    launch(scale_kernel, 1, x, partial_amax, out, SHARES=partial_amax.numel(), TARGET_EXPONENT=kernels.TARGET_EXPONENT)
    up, down = out.tolist()
    return up, down


@pytest.mark.parametrize("numel", [0, 1, 4095, 4097, 20000])
def test_every_number_is_seen(numel: int) -> None:
    x = torch.zeros(numel)
    assert ops.partial_amax(x).max() == 0
    for place in {0, numel // 2, numel - 1} if numel else ():
        y = x.clone()
        y[place] = -3.5
        assert ops.partial_amax(y).max() == 3.5


@pytest.mark.parametrize("peak", [1.0, 1.99, 2.0, 6e4, 1e-7, 1e30, 3e38, 1e-30])
def test_the_largest_number_comes_to_the_top(peak: float) -> None:
    up, down = scales(torch.tensor([peak, -peak / 3, 0.0]))
    assert up * down == 1
    assert 2**kernels.TARGET_EXPONENT <= peak * up < 2 ** (kernels.TARGET_EXPONENT + 1)


@pytest.mark.parametrize("peak", [0.0, math.inf, math.nan])
def test_what_has_no_largest_number_is_left_as_it_is(peak: float) -> None:
    assert scales(torch.tensor([peak])) == (1, 1)


def test_subnormal_numbers_come_as_high_as_a_power_of_two_brings_them() -> None:
    assert scales(torch.tensor([1e-42]))[0] == 2**126


def test_the_operator_is_registered_well() -> None:
    torch.library.opcheck(ops.partial_amax, (torch.randn(3, 5),))


def of_pair(*tensors: torch.Tensor) -> tuple[float, ...]:
    """The largest of each tensor's shares."""
    found, *counts = ops.pair_amax(*tensors)
    return tuple(share.max().item() for share in found.split(counts) if share.numel())


def test_the_largest_finite_numbers_of_two_tensors() -> None:
    x, y = torch.randn(3, 4099), torch.randn(5)
    x[1, 7], x[0, 0], y[2] = math.nan, -math.inf, math.inf
    finite = [t[t.isfinite()].abs().max().item() for t in (x, y)]
    assert of_pair(x, y) == tuple(finite)
    assert of_pair(x.T) == (finite[0],)


def test_the_largest_number_of_very_many() -> None:
    x = torch.ones(2**21 + 5)
    x[-1] = -2
    assert of_pair(x, x[:7]) == (2, 1)


def test_only_elements_count() -> None:
    x = torch.tensor([[1.0, 9.0], [-2.0, 9.0]])
    assert of_pair(x[:, 0]) == (2,)  # what lies between them does not
    assert of_pair(x[0, 0].expand(5000), x[:, :1]) == (1, 2)  # one that is in memory once


def rows_of(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(1, 2).flatten(0, 1)


LAYOUTS = {
    "NCL": lambda x: x,
    "NLC": lambda x: x.mT.contiguous().mT,
    "strided": lambda x: x.repeat_interleave(2, 0)[::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 5), (3, 70, 67), (2, 16, 32), (9, 5, 1)])
def test_halves_hold_what_tf32_and_what_nearly_float32_hold(shape: tuple[int, ...], layout: str) -> None:
    x = LAYOUTS[layout](torch.randn(shape) * 1e-6)
    partial_amax = ops.partial_amax(x.contiguous())
    up, down = scales(x.contiguous())
    one, two = (ops.split(x, partial_amax, parts) for parts in (1, 2))
    exact = rows_of(x).double()
    assert up == reference.scale(x)
    assert torch.equal(one, reference.split(x, 1))
    assert torch.equal(two, reference.split(x, 2))
    assert ((two.double().sum(0) * down - exact).abs() <= exact.abs() * 2**-22 + down * 2**-25).all()


def test_what_is_not_finite_stays_so_and_harms_nothing_else() -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, 1.5, 0.0]).view(1, 5, 1)
    high, low = ops.split(x, ops.partial_amax(x), 2)
    scaled = (x * 2.0**kernels.TARGET_EXPONENT).half()  # as the largest finite number asks
    assert torch.equal(high.flatten().nan_to_num(7), scaled.flatten().nan_to_num(7))
    assert (low == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_narrow_type_is_laid_down_as_it_is(dtype: torch.dtype) -> None:
    x = torch.randn(2, 5, 7, dtype=dtype)
    assert torch.equal(ops.split(x, None, 1)[0], rows_of(x))


def test_the_splitting_operator_is_registered_well() -> None:
    x = torch.randn(2, 3, 5)
    torch.library.opcheck(ops.split, (x, ops.partial_amax(x), 2))
