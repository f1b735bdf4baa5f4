"""A max-pooling that saves one byte per output: the index of the maximum in its window."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.common.operands import HAS_TRITON
from lamina.accelerate.training.compressed_activations import relu
from lamina.accelerate.training.compressed_activations.window import Pooling

if HAS_TRITON:
    from lamina.accelerate.training.compressed_activations import ops


def max_pool2d(x: Tensor, pooling: Pooling) -> Tensor:
    """``torch.max_pool2d`` of ``x: (N, C, H, W)``, contiguous, with its derivative."""
    result: Tensor = _MaxPool.apply(x, pooling)  # type: ignore[no-untyped-call]
    return result


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pooling: Pooling) -> Tensor:
        y, window_indices = ops.max_pool(x, pooling)
        ctx.pooling = pooling
        ctx.save_for_backward(window_indices)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,), pooling = gradients, ctx.pooling
        (window_indices,) = ctx.saved_tensors
        # PyTorch's backward pass supports double backward and batched gradients.
        if torch.is_grad_enabled() or not relu.is_supported(gradient):
            x, pool = gradient.new_empty(pooling.shape), pooling.geometry
            sizes = pool.kernel, pool.stride, pool.padding, (1, 1), pool.ceil_mode
            plane_indices = indices(window_indices, pooling)
            return torch.ops.aten.max_pool2d_with_indices_backward(gradient, x, *sizes, plane_indices), None
        return ops.max_pool_backward(gradient.contiguous(), window_indices, pooling), None


def indices(window_indices: Tensor, pooling: Pooling) -> Tensor:
    """The indices of the maxima in their planes, as PyTorch returns them."""
    index, pool = window_indices.long(), pooling.geometry
    row, column = (torch.arange(size, device=window_indices.device) for size in window_indices.shape[2:])
    top, left = row * pool.stride_height - pool.padding_height, column * pool.stride_width - pool.padding_width
    return (top[:, None] + index // pool.kernel_width) * pooling.shape[3] + left + index % pool.kernel_width
