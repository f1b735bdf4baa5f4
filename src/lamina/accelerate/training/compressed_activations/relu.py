"""A ReLU that saves one bit of each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.common.operands import HAS_TRITON
from lamina.accelerate.training.compressed_activations import bitmap
from lamina.accelerate.training.compressed_activations.bitmap import Form, gapless
from lamina.accelerate.training.compressed_activations.forms import has_memory

if HAS_TRITON:
    from lamina.accelerate.training.compressed_activations import ops


def by_kernel(x: object) -> bool:
    """Whether the kernels take it: a plain tensor on a GPU."""
    return HAS_TRITON and has_memory(x) and x.is_cuda  # type: ignore[attr-defined]


def relu(x: Tensor, inplace: bool, keep: Callable[[Tensor], None]) -> Tensor:
    """``torch.relu(x)`` with its derivative; ``keep`` is given the bits that are saved."""
    result: Tensor = _ReLU.apply(x, inplace, keep)  # type: ignore[no-untyped-call]
    return result


class _ReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, inplace: bool, keep: Callable[[Tensor], None]) -> Tensor:
        if inplace:
            ctx.mark_dirty(x)
        if by_kernel(x):
            # The same elements without gaps, in the order in which they will be packed.
            source = x if gapless(x) else x.contiguous() if inplace else torch.empty_like(x).copy_(x)
            y = source if inplace or source is not x else torch.empty_like(x)
            bits = ops.relu(source, y)
            if inplace and source is not x:
                y = x.copy_(y)
        else:
            y = x.relu_() if inplace else x.relu()
            bits = bitmap.mask(y)
        ctx.form = Form.of(y)
        ctx.save_for_backward(bits)
        keep(bits)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (bits,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _Masked.apply(gradients[0], ctx.form, bits), None, None  # type: ignore[no-untyped-call]
        return _masked(gradients[0], ctx.form, bits), None, None


class _Masked(torch.autograd.Function):
    """The derivative, for derivatives of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, form: Form, bits: Tensor) -> Tensor:
        ctx.form = form
        ctx.save_for_backward(bits)
        return _masked(x, form, bits)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (bits,) = ctx.saved_tensors
        return _Masked.apply(gradients[0], ctx.form, bits), None, None  # type: ignore[no-untyped-call]


def _masked(x: Tensor, form: Form, bits: Tensor) -> Tensor:
    """Elements whose bit is set, and zero for the others; bits are in the order of the form's memory."""
    if x.stride() != form.strides:
        x = form.empty().copy_(x)
    return ops.masked(x, bits) if by_kernel(x) else bitmap.masked(x, bits)
