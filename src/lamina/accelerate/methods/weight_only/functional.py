"""Products with quantized weights: operands are checked, then the implementation ``impl`` runs."""

from __future__ import annotations

from torch import Tensor

from lamina.accelerate.common.choices import check_choice
from lamina.accelerate.common.operands import HAS_TRITON, cast, check_operands, compute_dtype, has_kernels, sizes
from lamina.accelerate.methods.weight_only import reference
from lamina.accelerate.methods.weight_only.config import IMPLS, Impl
from lamina.accelerate.methods.weight_only.formats import Packed
from lamina.errors import MissingError, UsageError

if HAS_TRITON:
    from lamina.accelerate.methods.weight_only import ops


def chosen(impl: Impl, x: Tensor, packed: Packed) -> Impl:
    """Resolve ``auto``; any other ``impl`` is checked and returned.

    Raises:
        UsageError: no such implementation.
        MissingError: ``kernel`` without Triton.
    """
    check_choice("impl", impl, IMPLS)
    if impl == "auto":
        runs = has_kernels(x) and x.dtype in ops.dtypes(packed.format)
        return "kernel" if runs else "reference"
    if impl == "kernel" and not HAS_TRITON:
        raise MissingError('impl="kernel" needs Triton: install lamina with its kernels extra, or use "reference"')
    return impl


def linear(x: Tensor, packed: Packed, bias: Tensor | None = None, *, impl: Impl = "auto") -> Tensor:
    """``x W^T + b``.

    Args:
        x: ``(..., inputs)``, of any strides.
        packed: the quantized weights.
        bias: ``(outputs,)``.
        impl: the implementation.

    Returns:
        ``(..., outputs)``, in the dtype of ``x``, or of autocast.

    Raises:
        UsageError: sizes, dtypes or devices do not fit.
        UnsupportedError: the kernel does not support this dtype.
        MissingError: it needs a GPU, or Triton.
    """
    outputs = len(packed.codes)
    check_operands(x, None, bias, outputs)
    if not x.dim() or x.shape[-1] != packed.inputs:
        raise UsageError(f"x: expected (..., {packed.inputs}), got {sizes(x)}")
    if packed.codes.device != x.device:
        raise UsageError(f"weights: expected them on {x.device} with x, got {packed.codes.device}")
    x = x.to(compute_dtype(x))
    bias = cast(bias, x.dtype)
    if chosen(impl, x, packed) == "reference":
        return reference.linear(x, packed, bias)
    flat = x.reshape(-1, packed.inputs)
    ops.check_input(flat, packed.format)
    y: Tensor = ops.linear_eager(flat, packed.codes, packed.scale, bias, packed.format, packed.inputs)
    return y.reshape(*x.shape[:-1], outputs)
