"""ReLU that counts what it writes, in one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.sparsity.monitor.reference import as_matrices

Count = Callable[[Tensor, Tensor], None]
"""Writes ReLU of the first ``(images, channels, pixels)`` to the second, and counts it."""


def can_fuse(x: Tensor, channels: int) -> bool:
    """Whether a map and its ReLU can be read as matrices where they lie."""
    return bool(x.numel()) and all(_is_view(as_matrices(each, channels), each) for each in (x, torch.empty_like(x)))


def counted_relu(x: Tensor, inplace: bool, channels: int, count: Count) -> Tensor:
    """``torch.relu(x)`` with its derivative, counted by ``count``; for maps that :func:`can_fuse`."""
    result: Tensor = _CountedReLU.apply(x, inplace, channels, count)  # type: ignore[no-untyped-call]
    return result


class _CountedReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, inplace: bool, channels: int, count: Count) -> Tensor:
        y = x if inplace else torch.empty_like(x)
        count(as_matrices(x, channels), as_matrices(y, channels))
        if inplace:
            ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(gradients[0], y, 0), None, None, None


def _is_view(matrices: Tensor, x: Tensor) -> bool:
    return matrices.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
