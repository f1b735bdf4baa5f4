"""A ReLU that saves one bit per element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.common.operands import HAS_TRITON
from lamina.accelerate.training.compressed_activations import bitmap
from lamina.accelerate.training.compressed_activations.bitmap import TensorLayout, is_dense_in_memory
from lamina.accelerate.training.compressed_activations.formats import has_memory

if HAS_TRITON:
    from lamina.accelerate.training.compressed_activations import ops


def is_supported(x: object) -> bool:
    """Whether the kernels support it: a plain tensor on a GPU."""
    return HAS_TRITON and has_memory(x) and x.is_cuda  # type: ignore[attr-defined]


def relu(x: Tensor, inplace: bool, keep: Callable[[Tensor], None]) -> Tensor:
    """``torch.relu(x)`` with its derivative; ``keep`` receives the saved bits."""
    result: Tensor = _ReLU.apply(x, inplace, keep)  # type: ignore[no-untyped-call]
    return result


class _ReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, inplace: bool, keep: Callable[[Tensor], None]) -> Tensor:
        if inplace:
            ctx.mark_dirty(x)
        if is_supported(x):
            # The elements dense in memory, in the order in which they will be packed.
            source = x if is_dense_in_memory(x) else x.contiguous() if inplace else torch.empty_like(x).copy_(x)
            y = source if inplace or source is not x else torch.empty_like(x)
            bits = ops.relu(source, y)
            if inplace and source is not x:
                y = x.copy_(y)
        else:
            y = x.relu_() if inplace else x.relu()
            bits = bitmap.mask(y)
        ctx.layout = TensorLayout.of(y)
        ctx.save_for_backward(bits)
        keep(bits)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (bits,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _Masked.apply(gradients[0], ctx.layout, bits), None, None  # type: ignore[no-untyped-call]
        return _masked(gradients[0], ctx.layout, bits), None, None


class _Masked(torch.autograd.Function):
    """The derivative, for double backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: TensorLayout, bits: Tensor) -> Tensor:
        ctx.layout = layout
        ctx.save_for_backward(bits)
        return _masked(x, layout, bits)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (bits,) = ctx.saved_tensors
        return _Masked.apply(gradients[0], ctx.layout, bits), None, None  # type: ignore[no-untyped-call]


def _masked(x: Tensor, layout: TensorLayout, bits: Tensor) -> Tensor:
    """The elements whose bit is set, and zero for the others; bits are in the memory order of ``layout``."""
    if x.stride() != layout.strides:
        x = layout.empty().copy_(x)
    return ops.masked(x, bits) if is_supported(x) else bitmap.masked(x, bits)
