"""Linear maps, convolutions and matrix products without the zeros of an operand: checked, and computed as asked for.

A `Plan` names the implementation of each phase; dense ones are exactly the library's. Nothing falls back on anything
else: what an implementation cannot do is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.common.choices import check_choice
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
from lamina.accelerate.methods.activation_sparsity.config import IMPLS, WEIGHTS, Impl, Weights
from lamina.accelerate.methods.activation_sparsity.dispatch import Plan
from lamina.accelerate.methods.activation_sparsity.ellpack.format import (
    PANEL,
    EllpackDib,
    check_capacity,
    check_panel,
    panels_of,
)
from lamina.accelerate.methods.activation_sparsity.window import Window
from lamina.errors import MissingError, UnsupportedError, UsageError

if HAS_TRITON:
    from lamina.accelerate.methods.activation_sparsity import ops

KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)
DENSE = Plan()


def compress(
    x: Tensor,
    window: Window | None = None,
    *,
    panel: int = PANEL,
    capacity: int | Literal["measure"] | None = None,
    scales: Tensor | None = None,
    impl: Literal["kernel", "reference"] = "kernel",
) -> EllpackDib:
    """A matrix, or the matrix that a convolution of a map multiplies, in ELLPACK-DIB.

    Args:
        x: ``(rows, columns)``, or ``(N, C, H, W)`` read as ``(taps * C, N * H' * W')`` without writing that.
        window: of the convolution; one pixel, if left out.
        panel: rows of a panel.
        capacity: slots of a column. As many as a panel has rows, if left out: more memory, but no look at the data.
            ``measure`` counts in one pass more and waits for the device.
        scales: of the panels, float32 powers of two; fitted, if left out, to what is largest in all of ``x``.
        impl: ``kernel``, or ``reference`` for any device.

    Raises:
        UsageError: sizes or types do not fit.
        UnsupportedError: the kernel does not take this type.
        MissingError: the kernel needs a GPU, or Triton.
    """
    check_panel(panel)
    check_choice("impl", impl, ("kernel", "reference"))
    if x.dim() not in (2, 4) or not x.is_floating_point():
        raise UsageError(f"x: expected a floating-point matrix or map (N, C, H, W), got {x.dtype} of {sizes(x)}")
    if x.dim() == 2 and window is not None:
        raise UsageError(f"x: expected a map (N, C, H, W) under a window, got {sizes(x)}")
    if capacity != "measure":
        check_capacity(capacity)
    steps = window or Window()
    x = x.detach()
    if impl == "kernel":
        _need_triton()
        image = x if x.dim() == 4 else ops.matrix_map(x)
        ops.check_device(image)
        if capacity == "measure":
            counts = ops.count(image, steps, panel=panel)
            capacity = int(counts.max()) if counts.numel() else 0
        return ops.convert(image, scales, steps, panel=panel, capacity=capacity)
    matrix = x if x.dim() == 2 else reference.columns_of(x, steps)
    if scales is None:
        scales = reference.fitted_scales(x.reshape(-1, 1), max(x.numel(), 1)).expand(panels_of(matrix.shape[0], panel))
    if capacity is None:
        capacity = min(panel, matrix.shape[0])
    slots = None if capacity == "measure" else capacity
    return reference.from_dense(matrix, panel=panel, capacity=slots, scales=scales)


def matmul(a: Tensor, b: Tensor, *, impl: Impl = "nonzero", weights: Weights = "same", masked: bool = False) -> Tensor:
    """``a @ b`` without the zeros of ``b``, and its gradient with respect to ``a`` likewise.

    Args:
        a: ``(M, K)``.
        b: ``(K, N)``.
        impl: ``nonzero`` rounds ``b`` to float16, ``union`` leaves it as it is.
        weights: the type in which ``nonzero`` reads ``a``.
        masked: compute the gradient of ``b`` only where ``b`` is not zero: for what a ReLU gave, whose own gradient
            lets nothing else through.

    Raises:
        UsageError: sizes, types or devices do not fit.
        UnsupportedError: the kernels do not take this type.
        MissingError: the kernels need a GPU, or Triton.
    """
    _check_kind(impl)
    check_choice("weights", weights, WEIGHTS)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise UsageError(f"expected (M, K) and (K, N), got {sizes(a)} and {sizes(b)}")
    check_floating(b)
    check_alike("a", a, b, "b")
    dtype = compute_dtype(b)
    a, b = a.to(dtype), b.to(dtype)
    if impl == "reference":
        return a @ reference.rounded(b)
    if impl == "dense" and not masked:
        return a @ b
    _need_triton()
    ops.check_device(b)
    c: Tensor = ops.matmul(a, b, impl, weights, masked)
    return c


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, plan: Plan = DENSE, weights: Weights = "same"
) -> Tensor:
    """``y = x W^T + b`` without the zeros of ``x``, and of the output's gradient, as ``plan`` says.

    Args:
        x: ``(..., in)``, of any strides.
        weight: ``(out, in)``.
        bias: ``(out,)``.
        plan: the implementation of each phase.
        weights: the type in which ``nonzero`` reads what it multiplies non-zeros by.

    Raises:
        UsageError: sizes, types or devices do not fit.
        UnsupportedError: the kernels do not take this type.
        MissingError: the kernels need a GPU, or Triton.
    """
    if plan == DENSE:
        return F.linear(x, weight, bias)
    _check_plan(plan, weights)
    if not x.dim() or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise UsageError(f"expected x (..., in) and weight (out, in), got {sizes(x)} and {sizes(weight)}")
    dtype = compute_dtype(x)
    check_operands(x, weight, bias)
    x, weight, bias = x.to(dtype), weight.to(dtype), cast(bias, dtype)
    if plan.forward == "reference":
        return F.linear(reference.rounded(x), weight, bias)
    _need_triton()
    ops.check_device(x)
    flat = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    y: Tensor = ops.linear(flat, weight, bias, *plan, weights)
    return owned(y, (*x.shape[:-1], weight.shape[0]))


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    *,
    plan: Plan = DENSE,
    weights: Weights = "same",
) -> Tensor:
    """A convolution without the zeros of ``x``, and of the output's gradient, as ``plan`` says.

    Args:
        x: ``(N, C, H, W)``, channels-last or not; the output follows.
        weight: ``(out, C, KH, KW)``.
        bias: ``(out,)``.
        stride, padding, dilation: one number for each spatial axis.
        plan: the implementation of each phase; the weight's gradient is the library's.
        weights: the type in which ``nonzero`` reads what it multiplies non-zeros by.

    Raises:
        UsageError: sizes, types or devices do not fit.
        UnsupportedError: the kernels do not take this type, or a phase not this geometry.
        MissingError: the kernels need a GPU, or Triton.
    """
    steps = tuple(stride), tuple(padding), tuple(dilation)
    if plan == DENSE:
        return F.conv2d(x, weight, bias, *steps)
    _check_plan(plan, weights)
    if x.dim() != 4 or weight.dim() != 4 or x.shape[1] != weight.shape[1]:
        raise UsageError(f"expected x (N, C, H, W) and weight (out, C, KH, KW), got {sizes(x)} and {sizes(weight)}")
    window = Window.of(weight.shape[2:], *steps)
    window.output(*x.shape[2:])
    if plan.backward_weight not in ("dense", "reference"):
        raise UnsupportedError(
            f"backward_weight: expected dense, got {plan.backward_weight}; a convolution has no other"
        )
    if window.strided and plan.backward_data not in ("dense", "reference"):
        raise UnsupportedError(f"backward_data: expected dense for strides {steps[0]}, got {plan.backward_data}")
    dtype = compute_dtype(x)
    check_operands(x, weight, bias)
    x, weight, bias = x.to(dtype), weight.to(dtype), cast(bias, dtype)
    if plan.forward == "reference":
        return F.conv2d(reference.rounded(x), weight, bias, *steps)
    _need_triton()
    ops.check_device(x)
    y: Tensor = ops.conv(x, weight, bias, window.pack(), plan.forward, plan.backward_data, weights)
    return y


def takes(x: Tensor) -> bool:
    """Whether the kernels can compute with an input: where it is, and in which type."""
    return has_kernels(x) and compute_dtype(x) in KERNEL_TYPES


def _need_triton() -> None:
    if not HAS_TRITON:
        raise MissingError(
            'sparsity kernels need Triton: install lamina with its kernels extra, or use impl="reference"'
        )


def _check_kind(impl: str) -> None:
    check_choice("impl", impl, tuple(name for name in IMPLS if name != "auto"))


def _check_plan(plan: Plan, weights: str) -> None:
    check_choice("weights", weights, WEIGHTS)
    for impl in plan:
        _check_kind(impl)
    if "reference" in plan and set(plan) != {"reference"}:
        raise UsageError(f"plan: expected the reference in all phases or in none, got {tuple(plan)}")
