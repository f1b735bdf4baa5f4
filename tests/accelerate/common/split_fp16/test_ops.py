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
def scale_kernel(partial_amax, out, PARTIALS: tl.constexpr, TARGET_EXPONENT: tl.constexpr):
    scale, scale_inv = kernels.load_scale(partial_amax, PARTIALS, TARGET_EXPONENT)
    tl.store(out, scale)
    tl.store(out + 1, scale_inv)


def scales(x: torch.Tensor) -> tuple[float, float]:
    partial_amax, out = ops.partial_amax(x), x.new_full((2,), math.nan, dtype=torch.float32)
    launch(
        scale_kernel, 1, x, partial_amax, out, PARTIALS=partial_amax.numel(), TARGET_EXPONENT=kernels.TARGET_EXPONENT
    )
    scale, scale_inv = out.tolist()
    return scale, scale_inv


@pytest.mark.parametrize("numel", [0, 1, 4095, 4097, 20000])
def test_every_element_is_read(numel: int) -> None:
    x = torch.zeros(numel)
    assert ops.partial_amax(x).max() == 0
    for index in {0, numel // 2, numel - 1} if numel else ():
        y = x.clone()
        y[index] = -3.5
        assert ops.partial_amax(y).max() == 3.5


@pytest.mark.parametrize("amax", [1.0, 1.99, 2.0, 6e4, 1e-7, 1e30, 3e38, 1e-30])
def test_the_amax_is_scaled_to_the_target(amax: float) -> None:
    scale, scale_inv = scales(torch.tensor([amax, -amax / 3, 0.0]))
    assert scale * scale_inv == 1
    assert 2**kernels.TARGET_EXPONENT <= amax * scale < 2 ** (kernels.TARGET_EXPONENT + 1)


@pytest.mark.parametrize("amax", [0.0, math.inf, math.nan])
def test_tensors_without_a_finite_amax_are_not_scaled(amax: float) -> None:
    assert scales(torch.tensor([amax])) == (1, 1)


def test_subnormal_values_are_scaled_by_the_largest_power_of_two() -> None:
    assert scales(torch.tensor([1e-42]))[0] == 2**126


def test_the_amax_operator_passes_opcheck() -> None:
    torch.library.opcheck(ops.partial_amax, (torch.randn(3, 5),))


def amax_of_pair(*tensors: torch.Tensor) -> tuple[float, ...]:
    """The amax of each tensor, from its partials."""
    partials, *counts = ops.pair_amax(*tensors)
    return tuple(each.max().item() for each in partials.split(counts) if each.numel())


def test_the_finite_amax_of_two_tensors() -> None:
    x, y = torch.randn(3, 4099), torch.randn(5)
    x[1, 7], x[0, 0], y[2] = math.nan, -math.inf, math.inf
    finite = [t[t.isfinite()].abs().max().item() for t in (x, y)]
    assert amax_of_pair(x, y) == tuple(finite)
    assert amax_of_pair(x.T) == (finite[0],)


def test_the_amax_of_a_large_tensor() -> None:
    x = torch.ones(2**21 + 5)
    x[-1] = -2
    assert amax_of_pair(x, x[:7]) == (2, 1)


def test_gaps_are_not_read() -> None:
    x = torch.tensor([[1.0, 9.0], [-2.0, 9.0]])
    assert amax_of_pair(x[:, 0]) == (2,)  # elements between them are not read
    assert amax_of_pair(x[0, 0].expand(5000), x[:, :1]) == (1, 2)  # an expanded element is read once


def rows_of(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(1, 2).flatten(0, 1)


LAYOUTS = {
    "NCL": lambda x: x,
    "NLC": lambda x: x.mT.contiguous().mT,
    "strided": lambda x: x.repeat_interleave(2, 0)[::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 5), (3, 70, 67), (2, 16, 32), (9, 5, 1)])
def test_terms_have_the_precision_of_tf32_and_nearly_of_float32(shape: tuple[int, ...], layout: str) -> None:
    x = LAYOUTS[layout](torch.randn(shape) * 1e-6)
    partial_amax = ops.partial_amax(x.contiguous())
    scale, scale_inv = scales(x.contiguous())
    one, two = (ops.split(x, partial_amax, terms) for terms in (1, 2))
    exact = rows_of(x).double()
    assert scale == reference.scale(x)
    assert torch.equal(one, reference.split(x, 1))
    assert torch.equal(two, reference.split(x, 2))
    assert ((two.double().sum(0) * scale_inv - exact).abs() <= exact.abs() * 2**-22 + scale_inv * 2**-25).all()


def test_nonfinite_values_stay_in_the_hi_term() -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, 1.5, 0.0]).view(1, 5, 1)
    hi, lo = ops.split(x, ops.partial_amax(x), 2)
    scaled = (x * 2.0**kernels.TARGET_EXPONENT).half()  # from the finite amax, 1.5
    assert torch.equal(hi.flatten().nan_to_num(7), scaled.flatten().nan_to_num(7))
    assert (lo == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_types_are_not_scaled(dtype: torch.dtype) -> None:
    x = torch.randn(2, 5, 7, dtype=dtype)
    assert torch.equal(ops.split(x, None, 1)[0], rows_of(x))


def test_the_split_operator_passes_opcheck() -> None:
    x = torch.randn(2, 3, 5)
    torch.library.opcheck(ops.split, (x, ops.partial_amax(x), 2))
