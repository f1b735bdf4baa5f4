import pytest
import torch
import triton.language as tl

from lamina.accelerate.runtime import triton_ops as ops
from lamina.errors import MissingError, UnsupportedError


def test_a_tensor_off_the_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "INTERPRETED", False)
    with pytest.raises(MissingError, match="fusion kernels: expected tensors on a CUDA device, got cpu; .* buy one"):
        ops.check_kernel_operand(torch.ones(1, device="cpu"), "fusion", "buy one")


def test_an_unsupported_dtype_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "INTERPRETED", True)
    with pytest.raises(UnsupportedError, match="expected one of float32, bfloat16, float16, got torch.float64; wait"):
        ops.check_kernel_operand(torch.ones(1, device="cpu", dtype=torch.float64), "fusion", "wait")
    ops.check_kernel_operand(torch.ones(1, device="cpu", dtype=torch.float64), "fusion", "wait", (torch.float64,))


def test_kernels_refuse_transforms_of_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "INTERPRETED", True)

    def function(x: torch.Tensor) -> torch.Tensor:
        ops.check_kernel_operand(x, "fusion", 'use impl="reference"')
        return x

    with pytest.raises(UnsupportedError, match='fusion kernels: expected no transform of torch.func.*; use impl="ref'):
        torch.func.vmap(function)(torch.ones(2, device="cpu"))


def test_offsets_have_64_bits_where_strides_need_them() -> None:
    narrow, wide = torch.empty(4, 5, device="meta"), torch.empty(1, device="meta").expand(2**20, 2**12)
    assert ops.index_type(narrow, wide) is tl.int32, "an expanded tensor has one element"
    strided = torch.empty_strided((3, 1), (2**30, 1), device="meta")
    assert strided.numel() == 3 and ops.index_type(narrow, strided) is tl.int64
    assert ops.index_type(torch.empty(0, 7, device="meta")) is tl.int32


def test_the_precision_of_float32_products_follows_the_library() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        for library, ours in (("tf32", "tf32"), ("ieee", "tf32x3")):
            torch.backends.cuda.matmul.fp32_precision = library
            assert ops.precision() == ours
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_pdl_options_follow_the_device_and_the_size_of_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small, large = torch.empty(ops.SMALL_TENSOR_BYTES // 4), torch.empty(ops.SMALL_TENSOR_BYTES // 4 + 1)
    assert ops.pdl_options(small) == {"PDL": 0}
    monkeypatch.setattr(ops, "supports_pdl", lambda device: True)
    assert ops.pdl_options(small) == {"PDL": 2, "launch_pdl": True}
    assert ops.pdl_options(small, large) == {"PDL": 1, "launch_pdl": True}
