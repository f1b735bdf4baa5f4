"""The im2col matrix of a map: what a convolution multiplies, described to kernels and never materialized.

A map is ``(N, C, H, W)`` of any strides. Row ``tap * C + channel`` and column ``image * pixels + pixel`` of its matrix
``(taps * C, N * H' * W')`` are addressed through the strides. `matrix_as_map` makes a matrix a map of one image.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.runtime.triton_ops import check_kernel_operand

POINTWISE = Conv2dGeometry()


def check_operand(tensor: Tensor) -> None:
    """Check that kernels can read a tensor; see `lamina.accelerate.runtime.triton_ops.check_kernel_operand`."""
    check_kernel_operand(tensor, "sparsity", 'use impl="reference"')


def matrix_as_map(matrix: Tensor) -> Tensor:
    """A view of a matrix ``(rows, columns)`` as a map ``(1, rows, 1, columns)``."""
    return matrix[None, :, None, :]


def output_size(x: Tensor, window: Conv2dGeometry) -> tuple[int, int]:
    """Height and width of the output; a 1x1 window also accepts empty maps."""
    height, width = x.shape[2:] if window.pointwise else window.output_size(*x.shape[2:])
    return height, width


def matrix_size(x: Tensor, window: Conv2dGeometry) -> tuple[int, int, bool]:
    """Rows and columns of the im2col matrix, and whether all taps are inside the image."""
    height, width = output_size(x, window)
    unpadded = (window.padding_height, window.padding_width) == (0, 0)
    return window.taps * x.shape[1], x.shape[0] * height * width, unpadded


def map_arguments(x: Tensor, window: Conv2dGeometry) -> tuple[int, ...]:
    """Kernel arguments: channels, pixels and width of the output, height, width and strides of the map."""
    height, width = output_size(x, window)
    return max(x.shape[1], 1), height * width, width, x.shape[2], x.shape[3], *x.stride()


def is_matrix(x: Tensor, window: Conv2dGeometry) -> bool:
    """Whether a map is a matrix under a 1x1 window: one image of one row."""
    return window.pointwise and x.shape[0] == 1 and x.shape[2] == 1


def flatten_pixels(x: Tensor) -> Tensor:
    """The map as one row of pixels if its strides allow, which lets kernels load adjacent pixels together."""
    return x.flatten(2)[:, :, None] if x.stride(2) == x.shape[3] * x.stride(3) else x


def output_like(x: Tensor, outputs: int, window: Conv2dGeometry) -> Tensor:
    """An uninitialized output ``(N, outputs, H', W')`` in the memory format of ``x``."""
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    layout = torch.channels_last if last else torch.contiguous_format
    shape = (x.shape[0], outputs, *output_size(x, window))
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)
