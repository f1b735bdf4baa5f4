"""A max-pooling that saves one byte of each result: which place of its window it came from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.operands import HAS_TRITON
from lamina.accelerate.sparsity.saved.window import Window

if HAS_TRITON:
    from lamina.accelerate.sparsity.saved import ops


def max_pool2d(x: Tensor, window: Window) -> Tensor:
    """``torch.max_pool2d`` of ``x: (N, C, H, W)``, contiguous, with its derivative."""
    result: Tensor = _MaxPool.apply(x, window)  # type: ignore[no-untyped-call]
    return result


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Window) -> Tensor:
        y, places = ops.max_pool(x, window)
        ctx.window, ctx.shape = window, x.shape
        ctx.save_for_backward(places)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,), window, shape = gradients, ctx.window, ctx.shape
        (places,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # PyTorch's own has derivatives
            how = window.kernel, window.stride, window.padding, (1, 1), False, indices(places, window, shape[3])
            return torch.ops.aten.max_pool2d_with_indices_backward(gradient, gradient.new_empty(shape), *how), None
        return ops.max_pool_backward(gradient.contiguous(), places, window, shape), None


def indices(places: Tensor, window: Window, width: int) -> Tensor:
    """Where in their planes the results of a pooling come from, as PyTorch tells."""
    place, wide = places.long(), window.kernel[1]
    row, column = (torch.arange(size, device=places.device) for size in places.shape[2:])
    top, left = row * window.stride[0] - window.padding[0], column * window.stride[1] - window.padding[1]
    return (top[:, None] + place // wide) * width + left + place % wide
