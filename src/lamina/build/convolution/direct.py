"""The vendor library: cuDNN or MIOpen on a GPU, oneDNN on a CPU. The library chooses the algorithm.

``y[n,o,t] = sum_{c,k} x[n,c,s*t+d*k-p] * w[o,c,k]``; each gradient is a separate library call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lamina.build.convolution.geometry import Geometry
from lamina.build.convolution.layout import is_channels_last


def forward(x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    """Output ``(N, K, *size)`` of inputs ``(N, C, *size)``."""
    g = geometry
    return torch.convolution(x, w, None, g.stride, g.padding, g.dilation, g.transposed, g.output_padding, g.groups)


def backward_data(gy: Tensor, w: Tensor, geometry: Geometry, x_shape: Sequence[int]) -> Tensor:
    """Gradient of the input, ``x_shape``."""
    return _backward(gy, _placeholder(gy, x_shape), w, geometry, 0)


def backward_weight(gy: Tensor, x: Tensor, geometry: Geometry, w_shape: Sequence[int]) -> Tensor:
    """Gradient of the weight, ``w_shape``."""
    return _backward(gy, x, _placeholder(x, w_shape), geometry, 1)


def refusal(geometry: Geometry, w_shape: Sequence[int]) -> str | None:
    """All shapes are supported."""
    return None


def _backward(gy: Tensor, x: Tensor, w: Tensor, geometry: Geometry, wanted: int) -> Tensor:
    g = geometry
    mask = [wanted == 0, wanted == 1, False]
    gradients = torch.ops.aten.convolution_backward(
        gy, x, w, None, g.stride, g.padding, g.dilation, g.transposed, g.output_padding, g.groups, mask
    )
    gradient: Tensor = gradients[wanted]
    return gradient


def _placeholder(like: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor of ``shape`` that is never read; its memory format determines that of the result."""
    if is_channels_last(like):
        return torch.empty(tuple(shape), dtype=like.dtype, device=like.device, memory_format=torch.channels_last)
    return like.new_empty(1).expand(tuple(shape))
