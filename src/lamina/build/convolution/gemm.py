"""Explicit im2col and one batched matrix product (Chellapilla et al. 2006; Chetlur et al. 2014, section 3).

With ``X[(c,k),t] = x[c, s*t+d*k-p]`` and ``W[o,(c,k)] = w[o,c,k]``: ``Y = W X``, ``dX = W^T dY`` followed by col2im,
``dW = sum_n dY X^T``. ``X`` repeats the input for each filter tap and is materialized in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lamina.build.convolution.geometry import Geometry, refuse_transposed


def forward(x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    """Output ``(N, K, *size)`` of inputs ``(N, C, *size)``."""
    size = geometry.output_size(x.shape[2:], w.shape[2:])
    y = _rows(w, geometry) @ _columns(x, w.shape[2:], geometry)
    return y.reshape(x.shape[0], w.shape[0], *size)


def backward_data(gy: Tensor, w: Tensor, geometry: Geometry, x_shape: Sequence[int]) -> Tensor:
    """Gradient of the input, ``x_shape``."""
    columns = _rows(w, geometry).transpose(1, 2) @ _grouped(gy, geometry)
    plane = geometry.as_plane()
    height_width, kernel = _plane_sizes(x_shape[2:]), _plane_sizes(w.shape[2:])
    image = F.fold(columns.flatten(1, 2), height_width, kernel, plane.dilation, plane.padding, plane.stride)
    return image.reshape(tuple(x_shape))


def backward_weight(gy: Tensor, x: Tensor, geometry: Geometry, w_shape: Sequence[int]) -> Tensor:
    """Gradient of the weight, ``w_shape``; the contributions of the images are summed in the dtype of ``x``."""
    parts = _grouped(gy, geometry) @ _columns(x, w_shape[2:], geometry).transpose(2, 3)
    return parts.sum(0).reshape(tuple(w_shape))


def refusal(geometry: Geometry, w_shape: Sequence[int]) -> str | None:
    """Transposed convolutions are not supported."""
    return refuse_transposed(geometry)


def _plane_sizes(sizes: Sequence[int]) -> tuple[int, int]:
    return (1, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])


def _rows(w: Tensor, geometry: Geometry) -> Tensor:
    """``(K, C/g, *kernel)`` as ``(g, K/g, C/g * taps)``."""
    return w.reshape(geometry.groups, w.shape[0] // geometry.groups, -1)


def _grouped(gy: Tensor, geometry: Geometry) -> Tensor:
    """``(N, K, *size)`` as ``(N, g, K/g, positions)``."""
    return torch.unflatten(gy.flatten(2), 1, (geometry.groups, -1))


def _columns(x: Tensor, kernel_size: Sequence[int], geometry: Geometry) -> Tensor:
    """``(N, C, *size)`` as ``(N, g, C/g * taps, positions)``."""
    plane = geometry.as_plane()
    image = x.unsqueeze(2) if geometry.rank == 1 else x
    columns = F.unfold(image, _plane_sizes(kernel_size), plane.dilation, plane.padding, plane.stride)
    return torch.unflatten(columns, 1, (geometry.groups, -1))
