"""Fused ReLU and count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Count = Callable[[Tensor, Tensor], None]
"""Writes the ReLU of the first tensor to the second, and counts it."""

_backward = torch.ops.aten.threshold_backward.default


def relu_and_count(x: Tensor, inplace: bool, count: Count) -> Tensor:
    """``torch.relu(x)`` with its derivative, counted by ``count``."""
    result: Tensor = _ReLUAndCount.apply(x, inplace, count)  # type: ignore[no-untyped-call]
    return result


class _ReLUAndCount(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, inplace: bool, count: Count) -> Tensor:
        y = x if inplace else torch.empty_like(x)
        count(x, y)
        if inplace:
            ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (y,) = ctx.saved_tensors
        return _backward(gradients[0], y, 0), None, None
