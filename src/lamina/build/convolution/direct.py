"""The vendor library: cuDNN or MIOpen on a GPU, oneDNN on a CPU, which choose the algorithm themselves.

``y[n,o,t] = sum_{c,k} x[n,c,s*t+d*k-p] * w[o,c,k]``; each gradient is the library's own call for it alone.
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
    return _backward(gy, _stand_in(gy, x_shape), w, geometry, 0)


def backward_weight(gy: Tensor, x: Tensor, geometry: Geometry, w_shape: Sequence[int]) -> Tensor:
    """Gradient of the weight, ``w_shape``."""
    return _backward(gy, x, _stand_in(x, w_shape), geometry, 1)


def refusal(geometry: Geometry, w_shape: Sequence[int]) -> str | None:
    """Nothing is refused."""
    return None


def _backward(gy: Tensor, x: Tensor, w: Tensor, geometry: Geometry, wanted: int) -> Tensor:
    g = geometry
    mask = [wanted == 0, wanted == 1, False]
    gradients = torch.ops.aten.convolution_backward(
        gy, x, w, None, g.stride, g.padding, g.dilation, g.transposed, g.output_padding, g.groups, mask
    )
    gradient: Tensor = gradients[wanted]
    return gradient


def _stand_in(like: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor of ``shape`` that is never read; the library lays its result out in the same memory format."""
    if is_channels_last(like):
        return torch.empty(tuple(shape), dtype=like.dtype, device=like.device, memory_format=torch.channels_last)
    return like.new_empty(1).expand(tuple(shape))
