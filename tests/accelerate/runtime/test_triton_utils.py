from typing import no_type_check

import pytest
import torch
import triton
import triton.language as tl

from lamina.accelerate.runtime.triton_utils import fast_divide, fast_divisor

pytestmark = pytest.mark.usefixtures("where_kernels_run")


@triton.jit
@no_type_check
def divide(dividends, magic, out, COUNT: tl.constexpr):
    offsets = tl.arange(0, COUNT)
    tl.store(out + offsets, fast_divide(tl.load(dividends + offsets), magic))


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 56, 113, 12_544, 2**30 + 1, 2**31 - 1])
def test_fast_division_is_exact_below_2_to_the_31(divisor: int) -> None:
    dividends = [0, 1, divisor - 1, divisor, min(2 * divisor, 2**31) - 1, 12_345_678, 2**31 - 2, 2**31 - 1]
    x = torch.tensor(dividends, dtype=torch.int32)
    quotients = torch.empty_like(x)
    divide[1,](x, fast_divisor(divisor), quotients, COUNT=8)
    assert quotients.tolist() == [dividend // divisor for dividend in dividends]
