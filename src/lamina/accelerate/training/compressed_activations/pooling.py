"""A max-pooling that saves one byte of each result: which place of its window it came from."""

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
        y, places = ops.max_pool(x, pooling)
        ctx.pooling = pooling
        ctx.save_for_backward(places)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,), pooling = gradients, ctx.pooling
        (places,) = ctx.saved_tensors
        if torch.is_grad_enabled() or not relu.by_kernel(gradient):  # PyTorch's own has derivatives, and takes batches
            x, pool = gradient.new_empty(pooling.shape), pooling.geometry
            sizes = pool.kernel, pool.stride, pool.padding, (1, 1), pool.ceil_mode
            where = indices(places, pooling)
            return torch.ops.aten.max_pool2d_with_indices_backward(gradient, x, *sizes, where), None
        return ops.max_pool_backward(gradient.contiguous(), places, pooling), None


def indices(places: Tensor, pooling: Pooling) -> Tensor:
    """Where in their planes the results of a pooling come from, as PyTorch tells."""
    place, pool = places.long(), pooling.geometry
    row, column = (torch.arange(size, device=places.device) for size in places.shape[2:])
    top, left = row * pool.stride_height - pool.padding_height, column * pool.stride_width - pool.padding_width
    return (top[:, None] + place // pool.kernel_width) * pooling.shape[3] + left + place % pool.kernel_width
