"""The check that interpreted kernels stay within what they are given: it sees what goes beyond."""

import pytest
import torch
import triton
import triton.language as tl

from lamina.accelerate.runtime.triton_ops import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="on a GPU compute-sanitizer sees it")


@triton.jit
def copy_kernel(x, y, first, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + first + at, at < BLOCK - 1, 0.0), at < BLOCK - 1)


def test_all_within_is_let_through() -> None:
    x, y = torch.randn(9), torch.zeros(7)
    copy_kernel[(1,)](x, y, 2, BLOCK=8)
    assert torch.equal(y, x[2:])


@pytest.mark.parametrize(("first", "size", "what"), [(3, 7, "load"), (-1, 7, "load"), (0, 6, "store")])
def test_what_is_beyond_is_told(first: int, size: int, what: str) -> None:
    with pytest.raises(Exception, match=f"create_masked_{what} of 1 elements of 7 outside"):
        copy_kernel[(1,)](torch.randn(9), torch.zeros(size), first, BLOCK=8)
