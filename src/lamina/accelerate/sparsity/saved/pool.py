"""A max pooling that saves a byte for each window."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.sparsity.saved.relu import HAS_TRITON, by_kernel

if HAS_TRITON:
    from lamina.accelerate.sparsity.saved import ops


def windows(
    x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> ops.Windows | None:  # fmt: skip
    """The windows of ``max_pool2d`` with these arguments; None if it is for the library."""
    size, step, margin = _pair(kernel_size), _pair(stride or kernel_size), _pair(padding)
    fits = x.dim() == 4 and x.is_contiguous() and x.numel() > 0 and by_kernel(x) and size[0] * size[1] <= 256
    if (
        not fits
        or return_indices
        or _pair(dilation) != (1, 1)
        or any(2 * m > s for m, s in zip(margin, size, strict=True))
    ):
        return None
    found = ops.Windows(size, step, margin, ceil_mode)
    return found if min(found.counts(x)) > 0 else None


def max_pool(x: Tensor, windows: ops.Windows) -> Tensor:
    """``max_pool2d`` with its derivative."""
    result: Tensor = _MaxPool.apply(x, windows)  # type: ignore[no-untyped-call]
    return result


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, windows: ops.Windows) -> Tensor:
        y, chosen = ops.max_pool(x, windows)
        ctx.shape, ctx.windows = x.shape, windows
        ctx.save_for_backward(chosen)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (chosen,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _MaxUnpool.apply(gradients[0], chosen, ctx.shape, ctx.windows), None  # type: ignore[no-untyped-call]
        return ops.max_unpool(gradients[0].contiguous(), chosen, ctx.shape, ctx.windows), None


class _MaxUnpool(torch.autograd.Function):
    """The derivative, for derivatives of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, chosen: Tensor, shape: torch.Size, windows: ops.Windows) -> Tensor:
        ctx.windows = windows
        ctx.save_for_backward(chosen)
        return ops.max_unpool(x.contiguous(), chosen, shape, windows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (chosen,) = ctx.saved_tensors
        (gradient,), own = gradients, ctx.windows
        down, across = (
            torch.arange(count, device=chosen.device) * step - margin
            for count, step, margin in zip(chosen.shape[2:], own.step, own.margin, strict=True)
        )
        which = chosen.long()
        place = (down[:, None] + which // own.size[1]) * gradient.shape[3] + across + which % own.size[1]
        return gradient.flatten(2).gather(2, place.flatten(2)).view(chosen.shape), None, None, None


def _pair(size: Any) -> tuple[int, int]:
    """A size down and across, given as one number or both."""
    down, across = (size, size) if isinstance(size, int) else (*size, size[0])[:2]
    return int(down), int(across)
