"""A convolution whose backward pass lets go of a large input before it makes room for that input's gradient.

PyTorch's computes the gradients of input and weight in one call, within which the input, both maps' gradients and the
library's workspace are there at a time. Here they are two calls of the same functions: the weight's comes first, and
that of the input, which asks for its sizes alone, after the input has gone. An input is saved once the result is there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.training.compressed_activations.window import pair

Pair = int | tuple[int, ...]

APART = 1 << 26
"""Bytes from which an input is worth the calls."""


def splits(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Pair = 1, padding: Pair | str = 0,
    dilation: Pair = 1, groups: int = 1,
) -> bool:  # fmt: skip
    """Whether an input is so large; unless it is not saved, autocast saves another, or padding is a word."""
    if x.numel() * x.itemsize < APART or x.dim() != 4:
        return False
    return weight.requires_grad and not isinstance(padding, str) and not torch.is_autocast_enabled(x.device.type)


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    """``torch.conv2d`` of ``x: (N, C, H, W)``, with its derivatives."""
    pairs = (pair(stride), pair(padding), pair(dilation))
    result: Tensor = _Convolution.apply(x, weight, bias, *pairs, groups)  # type: ignore[no-untyped-call]
    return result


def is_last_use(node: object) -> bool:
    """Whether a node of a graph that runs asks for what it saved once, and nobody asks again."""
    return isinstance(node, _Convolution._backward_cls) and not torch._C._autograd._get_current_graph_task_keep_graph()


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> Tensor:
        ctx.how = None if bias is None else bias.shape, stride, padding, dilation, False, (0, 0), groups
        ctx.save_for_backward(x, weight)
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), how = gradients, ctx.how
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # derivatives of these need all of it
            return *_derived(gradient, x, weight, *how, (of_x, of_weight, of_bias)), None, None, None, None
        _, by_weight, by_bias = _derived(gradient, x, weight, *how, (False, of_weight, of_bias))
        if x.is_contiguous():  # of other layouts the library asks by strides
            x = x.new_empty(1).expand(x.shape)
        by_x, _, _ = _derived(gradient, x, weight, *how, (of_x, False, False))
        return by_x, by_weight, by_bias, None, None, None, None


_derived = torch.ops.aten.convolution_backward
