from typing import no_type_check

import pytest
import torch
import triton
import triton.language as tl

from lamina.accelerate.runtime.triton_utils import quotient, reciprocal

pytestmark = pytest.mark.usefixtures("where_kernels_run")


@triton.jit
@no_type_check
def divide(numbers, by, out, COUNT: tl.constexpr):
    place = tl.arange(0, COUNT)
    tl.store(out + place, quotient(tl.load(numbers + place), by))


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 56, 113, 12_544, 2**30 + 1, 2**31 - 1])
def test_quotients_are_exact_up_to_the_largest_row(divisor: int) -> None:
    numbers = [0, 1, divisor - 1, divisor, min(2 * divisor, 2**31) - 1, 12_345_678, 2**31 - 2, 2**31 - 1]
    given = torch.tensor(numbers, dtype=torch.int32)
    found = torch.empty_like(given)
    divide[1,](given, reciprocal(divisor), found, COUNT=8)
    assert found.tolist() == [number // divisor for number in numbers]
