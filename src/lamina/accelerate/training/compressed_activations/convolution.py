"""A convolution whose backward pass frees a large input before it allocates that input's gradient.

PyTorch computes both gradients in one call, during which the input, both maps' gradients and the library's workspace
are allocated. Here they are two calls of the same function: first the gradient of the weight, then, with the input
freed, that of the input, which needs its sizes only. The input is saved after the result has been computed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.training.compressed_activations.window import pair

Pair = int | tuple[int, ...]

MIN_SPLIT_BYTES = 1 << 26
"""Input size in bytes from which two calls pay."""


def splits(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Pair = 1, padding: Pair | str = 0,
    dilation: Pair = 1, groups: int = 1,
) -> bool:  # fmt: skip
    """Whether to split the backward pass: the input is large, saved as it is, and padding is numeric."""
    if x.numel() * x.itemsize < MIN_SPLIT_BYTES or x.dim() != 4:
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
    """Whether a node reads its saved tensors for the last time: it is a `conv2d`, and the graph is not retained."""
    return isinstance(node, _Convolution._backward_cls) and not torch._C._autograd._get_current_graph_task_keep_graph()


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> Tensor:
        ctx.options = None if bias is None else bias.shape, stride, padding, dilation, False, (0, 0), groups
        ctx.save_for_backward(x, weight)
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), options = gradients, ctx.options
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward needs the input
            return *_derived(gradient, x, weight, *options, (needs_x, needs_weight, needs_bias)), None, None, None, None
        _, weight_gradient, bias_gradient = _derived(gradient, x, weight, *options, (False, needs_weight, needs_bias))
        if x.is_contiguous():  # for other layouts the library reads the strides
            x = x.new_empty(1).expand(x.shape)
        x_gradient, _, _ = _derived(gradient, x, weight, *options, (needs_x, False, False))
        return x_gradient, weight_gradient, bias_gradient, None, None, None, None


_derived = torch.ops.aten.convolution_backward
