"""Linear layers, convolutions and matrix products that skip the zeros of an operand.

A `PhaseImpls` names the implementation of each phase; a dense phase is the library's own call. There is no fallback: an
implementation that does not support its operands raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.common.choices import check_choice
from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.common.operands import (
    HAS_TRITON,
    cast,
    check_alike,
    check_floating,
    check_operands,
    compute_dtype,
    has_kernels,
    owned,
    sizes,
)
from lamina.accelerate.methods.activation_sparsity import reference
from lamina.accelerate.methods.activation_sparsity.config import IMPLS, WEIGHTS, Impl, Weights, check_impl
from lamina.accelerate.methods.activation_sparsity.cost import PhaseImpls
from lamina.accelerate.methods.activation_sparsity.ellpack.format import (
    PANEL,
    EllpackDib,
    check_capacity,
    check_panel,
    panels_of,
)
from lamina.errors import MissingError, UnsupportedError, UsageError

if HAS_TRITON:
    from lamina.accelerate.methods.activation_sparsity import ops
    from lamina.accelerate.methods.activation_sparsity.ellpack.ops import count_nonzeros, to_ellpack
    from lamina.accelerate.methods.activation_sparsity.im2col import check_operand, matrix_as_map

KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ALL_DENSE = PhaseImpls()


def compress(
    x: Tensor,
    window: Conv2dGeometry | None = None,
    *,
    panel: int = PANEL,
    capacity: int | Literal["measure"] | None = None,
    scales: Tensor | None = None,
    impl: Literal["kernel", "reference"] = "kernel",
) -> EllpackDib:
    """Convert a matrix, or the im2col matrix of a map, to ELLPACK-DIB.

    Args:
        x: ``(rows, columns)``, or ``(N, C, H, W)`` read as its im2col matrix ``(taps * C, N * H' * W')``, which is not
            materialized.
        window: of the convolution; 1x1 if omitted.
        panel: rows of a panel.
        capacity: slots per column. If omitted, as many as a panel has rows, which needs no pass over the data.
            ``measure`` counts the non-zeros in one more pass and synchronizes with the device.
        scales: float32 powers of two, one for each panel. If omitted, all are fitted to the amax of ``x``.
        impl: ``kernel``, or ``reference`` for any device.

    Raises:
        UsageError: sizes or dtypes do not match.
        UnsupportedError: the kernel does not support this dtype.
        MissingError: the kernel needs a GPU, or Triton.
    """
    check_panel(panel)
    check_choice("impl", impl, ("kernel", "reference"))
    if x.dim() not in (2, 4) or not x.is_floating_point():
        raise UsageError(f"x: expected a floating-point matrix or map (N, C, H, W), got {x.dtype} of {sizes(x)}")
    if x.dim() == 2 and window is not None:
        raise UsageError(f"x: expected a map (N, C, H, W) with a window, got {sizes(x)}")
    if capacity != "measure":
        check_capacity(capacity)
    geometry = window or Conv2dGeometry()
    x = x.detach()
    if impl == "kernel":
        _require_triton()
        image = x if x.dim() == 4 else matrix_as_map(x)
        check_operand(image)
        if capacity == "measure":
            counts = count_nonzeros(image, geometry, panel=panel)
            capacity = int(counts.max()) if counts.numel() else 0
        return to_ellpack(image, scales, geometry, panel=panel, capacity=capacity)
    matrix = x if x.dim() == 2 else reference.im2col(x, geometry)
    if scales is None:
        scales = reference.fit_scales(x.reshape(-1, 1), max(x.numel(), 1)).expand(panels_of(matrix.shape[0], panel))
    if capacity is None:
        capacity = min(panel, matrix.shape[0])
    slots = None if capacity == "measure" else capacity
    return reference.from_dense(matrix, panel=panel, capacity=slots, scales=scales)


def matmul(a: Tensor, b: Tensor, *, impl: Impl = "nonzero", weights: Weights = "same", masked: bool = False) -> Tensor:
    """``a @ b`` that skips the zeros of ``b``, as does its gradient with respect to ``a``.

    Args:
        a: ``(M, K)``.
        b: ``(K, N)``.
        impl: ``nonzero`` and ``row_union_fp16`` round ``b`` to float16, ``row_union`` does not.
        weights: the dtype in which ``nonzero`` reads ``a``.
        masked: compute the gradient of ``b`` only where ``b`` is not zero, for a ``b`` that is the output of a ReLU,
            whose backward pass masks the rest.

    Raises:
        UsageError: sizes, dtypes or devices do not match.
        UnsupportedError: the kernels do not support this dtype.
        MissingError: the kernels need a GPU, or Triton.
    """
    impl = _check_impl(impl)
    check_choice("weights", weights, WEIGHTS)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise UsageError(f"expected (M, K) and (K, N), got {sizes(a)} and {sizes(b)}")
    check_floating(b)
    check_alike("a", a, b, "b")
    dtype = compute_dtype(b)
    a, b = a.to(dtype), b.to(dtype)
    if impl == "reference":
        return a @ reference.round_to_format(b)
    if impl == "dense" and not masked:
        return a @ b
    _require_triton()
    check_operand(b)
    c: Tensor = ops.matmul(a, b, impl, weights, masked)
    return c


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, impls: PhaseImpls = ALL_DENSE, weights: Weights = "same"
) -> Tensor:
    """``y = x W^T + b`` that skips the zeros of ``x``, and those of the output's gradient in the backward pass.

    Args:
        x: ``(..., in)``, of any strides.
        weight: ``(out, in)``.
        bias: ``(out,)``.
        impls: the implementation of each phase.
        weights: the dtype in which ``nonzero`` reads the operand that it multiplies the non-zeros by.

    Raises:
        UsageError: sizes, dtypes or devices do not match.
        UnsupportedError: the kernels do not support this dtype.
        MissingError: the kernels need a GPU, or Triton.
    """
    if impls == ALL_DENSE:
        return F.linear(x, weight, bias)
    impls = _check_impls(impls, weights)
    if not x.dim() or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise UsageError(f"expected x (..., in) and weight (out, in), got {sizes(x)} and {sizes(weight)}")
    dtype = compute_dtype(x)
    check_operands(x, weight, bias)
    x, weight, bias = x.to(dtype), weight.to(dtype), cast(bias, dtype)
    if impls.forward == "reference":
        return F.linear(reference.round_to_format(x), weight, bias)
    _require_triton()
    check_operand(x)
    flat = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    y: Tensor = ops.linear(flat, weight, bias, *impls, weights)
    return owned(y, (*x.shape[:-1], weight.shape[0]))


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    *,
    impls: PhaseImpls = ALL_DENSE,
    weights: Weights = "same",
) -> Tensor:
    """A convolution that skips the zeros of ``x``, and those of the output's gradient in the backward pass.

    Args:
        x: ``(N, C, H, W)``, channels-last or contiguous; the output has the same memory format.
        weight: ``(out, C, KH, KW)``.
        bias: ``(out,)``.
        stride, padding, dilation: height and width.
        impls: the implementation of each phase; ``backward_weight`` is the library's.
        weights: the dtype in which ``nonzero`` reads the operand that it multiplies the non-zeros by.

    Raises:
        UsageError: sizes, dtypes or devices do not match.
        UnsupportedError: the kernels do not support this dtype, or a phase not this geometry.
        MissingError: the kernels need a GPU, or Triton.
    """
    steps = tuple(stride), tuple(padding), tuple(dilation)
    if impls == ALL_DENSE:
        return F.conv2d(x, weight, bias, *steps)
    impls = _check_impls(impls, weights)
    if x.dim() != 4 or weight.dim() != 4 or x.shape[1] != weight.shape[1]:
        raise UsageError(f"expected x (N, C, H, W) and weight (out, C, KH, KW), got {sizes(x)} and {sizes(weight)}")
    window = Conv2dGeometry.of(weight.shape[2:], *steps)
    window.output_size(*x.shape[2:])
    if impls.backward_weight not in ("dense", "reference"):
        raise UnsupportedError(
            f"backward_weight: expected dense, the only implementation for convolutions, got {impls.backward_weight}"
        )
    if window.strided and impls.backward_data not in ("dense", "reference"):
        raise UnsupportedError(f"backward_data: expected dense for strides {steps[0]}, got {impls.backward_data}")
    dtype = compute_dtype(x)
    check_operands(x, weight, bias)
    x, weight, bias = x.to(dtype), weight.to(dtype), cast(bias, dtype)
    if impls.forward == "reference":
        return F.conv2d(reference.round_to_format(x), weight, bias, *steps)
    _require_triton()
    check_operand(x)
    y: Tensor = ops.conv(x, weight, bias, window.pack(), impls.forward, impls.backward_data, weights)
    return y


def is_supported(x: Tensor) -> bool:
    """Whether the kernels support the device and the compute dtype of an input."""
    return has_kernels(x) and compute_dtype(x) in KERNEL_DTYPES


def _require_triton() -> None:
    if not HAS_TRITON:
        raise MissingError(
            'sparsity kernels need Triton: install lamina with its kernels extra, or use impl="reference"'
        )


def _check_impl(impl: str) -> Impl:
    """The current name of an implementation other than ``auto``."""
    checked = check_impl(impl)
    check_choice("impl", checked, tuple(name for name in IMPLS if name != "auto"))
    return checked


def _check_impls(impls: PhaseImpls, weights: str) -> PhaseImpls:
    check_choice("weights", weights, WEIGHTS)
    checked = PhaseImpls(*map(_check_impl, impls))
    if "reference" in checked and set(checked) != {"reference"}:
        raise UsageError(f"impls: expected reference for all phases or for none, got {tuple(checked)}")
    return checked
