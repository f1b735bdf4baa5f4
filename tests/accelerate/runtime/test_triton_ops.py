import pytest
import torch
import triton.language as tl

from lamina.accelerate.runtime import triton_ops as ops
from lamina.errors import MissingError, UnsupportedError


def test_a_tensor_that_no_kernel_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "INTERPRETED", False)
    with pytest.raises(MissingError, match="fusion kernels: expected tensors on a CUDA device, got cpu; .* buy one"):
        ops.check_device(torch.ones(1, device="cpu"), "fusion", "buy one")


def test_a_type_that_no_kernel_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "INTERPRETED", True)
    with pytest.raises(UnsupportedError, match="expected one of float32, bfloat16, float16, got torch.float64; wait"):
        ops.check_device(torch.ones(1, device="cpu", dtype=torch.float64), "fusion", "wait")
    ops.check_device(torch.ones(1, device="cpu", dtype=torch.float64), "fusion", "wait", (torch.float64,))


def test_kernels_refuse_transforms_of_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "INTERPRETED", True)

    def function(x: torch.Tensor) -> torch.Tensor:
        ops.check_device(x, "fusion", 'use impl="reference"')
        return x

    with pytest.raises(UnsupportedError, match='fusion kernels: expected no transform of torch.func.*; use impl="ref'):
        torch.func.vmap(function)(torch.ones(2, device="cpu"))


def test_addresses_are_as_wide_as_strides_reach() -> None:
    narrow, wide = torch.empty(4, 5, device="meta"), torch.empty(1, device="meta").expand(2**20, 2**12)
    assert ops.index_type(narrow, wide) is tl.int32, "an expanded tensor has one element"
    strided = torch.empty_strided((3, 1), (2**30, 1), device="meta")
    assert strided.numel() == 3 and ops.index_type(narrow, strided) is tl.int64
    assert ops.index_type(torch.empty(0, 7, device="meta")) is tl.int32


def test_products_of_float32_follow_the_library() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        for said, ours in (("tf32", "tf32"), ("ieee", "tf32x3")):
            torch.backends.cuda.matmul.fp32_precision = said
            assert ops.precision() == ours
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_kernels_are_launched_early_where_the_device_can_and_small_ones_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small, large = torch.empty(ops.SMALL // 4), torch.empty(ops.SMALL // 4 + 1)
    assert ops.early(small) == {"EARLY": 0}
    monkeypatch.setattr(ops, "can_wait", lambda device: True)
    assert ops.early(small) == {"EARLY": 2, "launch_pdl": True}
    assert ops.early(small, large) == {"EARLY": 1, "launch_pdl": True}
