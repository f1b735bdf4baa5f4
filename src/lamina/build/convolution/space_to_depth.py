"""Space-to-depth: a strided convolution of few channels as one of stride 1 of many.

Blocks of ``s x s`` pixels become channels: ``X[n,(i,j,c),u,v] = x[n,c,s*u+i-p,s*v+j-p]``, and
``W[o,(i,j,c),a,b] = w[o,c,s*a+i,s*b+j]``, with zeros beyond the kernel. Then
``y[n,o,u,v] = sum_{i,j,c,a,b} X[n,(i,j,c),u+a,v+b] W[o,(i,j,c),a,b]``.
The library's kernels for tensor cores read channels in vectors of 8: three channels of an image leave most of them
empty, or have no such kernel. Channels of zeros fill the vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from torch import Tensor
from torch.nn import functional as F

from lamina.build.convolution import direct
from lamina.build.convolution.geometry import Geometry, refuse_transposed
from lamina.build.convolution.layout import is_channels_last

VECTOR = 8
"""Channels that a kernel for tensor cores reads at once, in 16 bits."""
MOST = 16
"""Input channels from which on the library's kernels read full vectors."""
UNIT = Geometry((1, 1), (0, 0), (1, 1))


def forward(x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    """Output ``(N, K, *size)`` of inputs ``(N, C, *size)``."""
    blocks = _Blocks.of(x.shape, w.shape, geometry)
    return blocks.ranked(direct.forward(blocks.image(x), blocks.filters(w), UNIT))


def backward_data(gy: Tensor, w: Tensor, geometry: Geometry, x_shape: Sequence[int]) -> Tensor:
    """Gradient of the input, ``x_shape``."""
    blocks = _Blocks.of(x_shape, w.shape, geometry)
    gradient = direct.backward_data(blocks.plane(gy), blocks.filters(w), UNIT, blocks.image_shape(x_shape[0]))
    pixels = _pixels(gradient, blocks.stride)
    return blocks.ranked(F.pad(pixels, [-one for one in blocks.edges]))


def backward_weight(gy: Tensor, x: Tensor, geometry: Geometry, w_shape: Sequence[int]) -> Tensor:
    """Gradient of the weight, ``w_shape``."""
    blocks = _Blocks.of(x.shape, w_shape, geometry)
    gradient = direct.backward_weight(blocks.plane(gy), blocks.image(x), UNIT, blocks.filters_shape(w_shape[0]))
    pixels = _pixels(gradient, blocks.stride)
    return blocks.ranked(F.pad(pixels, [-one for one in blocks.taps_edges]))


def refusal(geometry: Geometry, w_shape: Sequence[int]) -> str | None:
    """Few input channels, without groups and dilation."""
    if reason := refuse_transposed(geometry):
        return reason
    if geometry.groups > 1 or max(geometry.dilation) > 1:
        return "does not support groups or dilation; use 'direct'"
    if w_shape[1] > MOST:
        return f"is for at most {MOST} input channels, got {w_shape[1]}; use 'direct'"
    return None


@dataclass(frozen=True)
class _Blocks:
    """The rearrangement of one convolution over two axes; a sequence is an image of height 1.

    Attributes:
        rank: of the convolution.
        stride: pixels of a block, by axis.
        channels: with those of zeros.
        size: of the image in blocks.
        taps: of the kernel in blocks.
        edges: what `torch.nn.functional.pad` adds to the image: width, height, channels; negative where it is cropped.
        taps_edges: as much for the kernel.
    """

    rank: int
    stride: tuple[int, int]
    channels: int
    size: tuple[int, int]
    taps: tuple[int, int]
    edges: tuple[int, ...]
    taps_edges: tuple[int, ...]

    @classmethod
    def of(cls, x_shape: Sequence[int], w_shape: Sequence[int], geometry: Geometry) -> _Blocks:
        plane = geometry.as_plane()
        image, kernel = (tuple(one[2:]) if geometry.rank == 2 else (1, one[2]) for one in (x_shape, w_shape))
        (down, across), (top, left) = plane.stride, plane.padding
        block = down * across
        step = VECTOR // gcd(VECTOR, block)
        channels = -(-w_shape[1] // step) * step
        taps = (-(-kernel[0] // down), -(-kernel[1] // across))
        out = plane.output_size(image, kernel)
        size = (out[0] + taps[0] - 1, out[1] + taps[1] - 1)
        below, right = down * size[0] - image[0] - top, across * size[1] - image[1] - left
        more = channels - w_shape[1]
        beyond = (0, across * taps[1] - kernel[1], 0, down * taps[0] - kernel[0], 0, more)
        return cls(geometry.rank, (down, across), channels, size, taps, (left, right, top, below, 0, more), beyond)

    def image(self, x: Tensor) -> Tensor:
        """``(N, C, *size)`` as ``(N, s * s * C', *blocks)``, channels-last if it was."""
        return _blocks(F.pad(self.plane(x), self.edges), self.stride, is_channels_last(x))

    def filters(self, w: Tensor) -> Tensor:
        """``(K, C, *kernel)`` as ``(K, s * s * C', *taps)``."""
        return _blocks(F.pad(self.plane(w), self.taps_edges), self.stride, is_channels_last(w))

    def image_shape(self, batch: int) -> tuple[int, ...]:
        """The shape of `image`."""
        return (batch, self.stride[0] * self.stride[1] * self.channels, *self.size)

    def filters_shape(self, outputs: int) -> tuple[int, ...]:
        """The shape of `filters`."""
        return (outputs, self.stride[0] * self.stride[1] * self.channels, *self.taps)

    def plane(self, x: Tensor) -> Tensor:
        """A sequence as an image of height 1."""
        return x.unsqueeze(2) if self.rank == 1 else x

    def ranked(self, y: Tensor) -> Tensor:
        """An image of height 1 as a sequence."""
        return y.squeeze(2) if self.rank == 1 else y


def _blocks(x: Tensor, stride: tuple[int, int], channels_last: bool) -> Tensor:
    """``(N, C, H, W)`` as ``(N, (i, j, C), H/s, W/s)``."""
    (batch, channels, height, width), (down, across) = x.shape, stride
    rows, columns, block = height // down, width // across, channels * down * across
    six = x.reshape(batch, channels, rows, down, columns, across)
    if channels_last:
        return six.permute(0, 2, 4, 3, 5, 1).reshape(batch, rows, columns, block).permute(0, 3, 1, 2)
    return six.permute(0, 3, 5, 1, 2, 4).reshape(batch, block, rows, columns)


def _pixels(y: Tensor, stride: tuple[int, int]) -> Tensor:
    """The inverse of `_blocks`, in the layout of the input."""
    (batch, block, rows, columns), (down, across) = y.shape, stride
    height, width, channels = rows * down, columns * across, block // (down * across)
    six = y.reshape(batch, down, across, channels, rows, columns)
    if is_channels_last(y):
        return six.permute(0, 4, 1, 5, 2, 3).reshape(batch, height, width, channels).permute(0, 3, 1, 2)
    return six.permute(0, 3, 4, 1, 5, 2).reshape(batch, channels, height, width)
