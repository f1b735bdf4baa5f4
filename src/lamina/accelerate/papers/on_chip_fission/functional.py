"""Products with on-chip fission: operands are checked, then the implementation ``impl`` runs."""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.accelerate.common.choices import check_choice
from lamina.accelerate.common.operands import cast, check_operands, compute_dtype, sizes, transformed
from lamina.accelerate.papers.on_chip_fission import ops, reference
from lamina.accelerate.papers.on_chip_fission.config import IMPLS, Impl, OnChip, Tile
from lamina.errors import UnsupportedError, UsageError


def resolve_impl(impl: Impl, x: Tensor) -> Impl:
    """The implementation that ``impl`` stands for with the input ``x``.

    Raises:
        UsageError: ``impl`` is unknown.
    """
    check_choice("impl", impl, IMPLS)
    if impl == "auto":
        return "kernel" if x.is_cuda and x.dtype == torch.float32 and not transformed() else "reference"
    return impl


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, index: Tensor | None = None, *,
    format: OnChip = "deft16", tile: Tile = 8, impl: Impl = "auto",
) -> Tensor:  # fmt: skip
    """``x W^T + b``. Gradients are those of the definition, with rounding as the identity.

    Args:
        x: ``(..., inputs)``.
        weight: ``(outputs, inputs)``, or ``(outputs, kept)`` with an index.
        bias: ``(outputs,)``.
        index: ``(kept,)``, the inputs that the weight multiplies.
        format: of values in shared memory.
        tile: outputs of a thread along each axis; of ``kernel``.
        impl: the implementation.

    Raises:
        UsageError: sizes, dtypes or devices do not fit.
        UnsupportedError: ``kernel`` with another dtype than float32.
        MissingError: ``kernel`` without a GPU.
    """
    check_operands(x, weight, bias)
    inputs = weight.shape[1] if index is None else None
    if not x.dim() or inputs not in (None, x.shape[-1]):
        raise UsageError(f"x: expected (..., {inputs}), got {sizes(x)}")
    dtype = compute_dtype(x)
    x, weight, bias = x.to(dtype), weight.to(dtype), cast(bias, dtype)
    if resolve_impl(impl, x) == "reference":
        return reference.linear(x, weight, bias, index, format)

    y = _by_kernel(x.reshape(-1, x.shape[-1]), weight, index, [], format, tile).view(*x.shape[:-1], len(weight))
    return y if bias is None else y + bias


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, index: Tensor | None = None,
    stride: tuple[int, int] = (1, 1), padding: tuple[int, int] = (0, 0), dilation: tuple[int, int] = (1, 1), *,
    format: OnChip = "deft16", tile: Tile = 8, impl: Impl = "auto",
) -> Tensor:  # fmt: skip
    """A convolution of ``x (N, C, H, W)`` with ``weight (outputs, C, KH, KW)``; ``C`` is kept channels with an index.

    Arguments and errors as for `linear`.
    """
    check_operands(x, weight, bias)
    channels = weight.shape[1] if index is None else None
    if x.dim() != 4 or channels not in (None, x.shape[1]):
        raise UsageError(f"x: expected (N, {channels or 'C'}, H, W), got {sizes(x)}")
    dtype = compute_dtype(x)
    x, weight, bias = x.to(dtype), weight.to(dtype), cast(bias, dtype)
    steps = stride, padding, dilation
    if resolve_impl(impl, x) == "reference":
        return reference.conv2d(x, weight, bias, index, format, *steps)
    y = _by_kernel(x, weight, index, [size for step in steps for size in step], format, tile)
    return y if bias is None else y + bias[:, None, None]


def _by_kernel(
    x: Tensor, weight: Tensor, index: Tensor | None, steps: list[int], format: OnChip, tile: Tile
) -> Tensor:
    if x.dtype != torch.float32:
        raise UnsupportedError(f"impl=kernel: expected float32, as in the paper, got {x.dtype}; use impl=reference")
    if transformed():
        raise UnsupportedError("impl=kernel: transforms of torch.func have no rules for it; use impl=reference")
    call = ops.product if torch.compiler.is_compiling() else ops.Product.apply
    y: Tensor = call(x, weight, index, steps, format, tile)  # type: ignore[no-untyped-call]
    return y
