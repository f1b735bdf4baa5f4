"""The matrix products (implicit GEMM) of the convolutions of a network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np

from lamina.errors import UsageError
from lamina.simulate.workloads.columns import Mask, Order, im2col, inside, spread_sizes
from lamina.simulate.workloads.patterns import MapShape
from lamina.spec import Phase
from lamina.spec.geometry import Conv2dGeometry, Pair
from lamina.spec.layers.convolution import Convolution
from lamina.spec.network import ResolvedLayer

GRADIENT = " gradient"
"""Ends the name of a recorded mask of the gradient of a layer's output."""


@dataclass(frozen=True)
class ConvolutionGemm:
    """Convolution of a batch as a matrix product per group: ``C[m, n] = A[m, k] B[k, n]``.

    Forward, A are the weights and B is im2col of the map [N, C, H, W]; ``m`` and ``k`` are those of one group. A
    transposed convolution multiplies the map itself, and its product is summed by col2im afterwards
    (``summed``). `backward` makes the products of the other phases, in which ``map`` is what B is made of.
    """

    layer: str
    m: int
    n: int
    k: int
    groups: int
    map: MapShape
    window: Conv2dGeometry
    phase: Phase = Phase.FORWARD
    spread: Pair = (1, 1)
    """Distance of the map's values in B: a stride above one puts zeros between those of a gradient."""
    ends: Pair = (0, 0)
    """Zeros behind the last row and column, which no window of the convolution reached."""
    summed: bool = False

    @property
    def source(self) -> str:
        """The name of the map in recorded masks: the layer's, or that of the gradient of its output."""
        return f"{self.layer}{GRADIENT}" if self.phase == Phase.BACKWARD_DATA else self.layer

    @property
    def operations(self) -> int:
        """Multiplications and additions of all groups."""
        return 2 * self.m * self.n * self.k * self.groups

    @property
    def bytes(self) -> tuple[int, int, int]:
        """Bytes of A, B and C in fp32, for all groups."""
        a, b, c = self.m * self.k, self.k * self.n, self.m * self.n
        return 4 * a * self.groups, 4 * b * self.groups, 4 * c * self.groups

    @property
    def inside(self) -> float:
        """Fraction of B that comes from the map; the rest is padding, or between the values of a gradient."""
        return inside(self.window, self.map[2], self.map[3], self.spread, self.ends)

    def padded(self, tile: int) -> tuple[int, int, int]:
        """``m``, ``n``, ``k`` rounded up to whole tiles."""
        return _whole(self.m, tile), _whole(self.n, tile), _whole(self.k, tile)

    def columns(self, mask: Mask, group: int = 0, columns: range | None = None, order: Order = "channel") -> Mask:
        """The mask of B for one group, [k, columns], from a mask of the map.

        B of the weights' gradient is the transposed im2col: its rows are the positions of all images.

        Raises:
            UsageError: the mask does not have the map's shape, or there is no such group or columns.
        """
        if mask.shape != self.map:
            raise UsageError(f"{self.layer}: expected a mask of {list(self.map)}, got {list(mask.shape)}")
        if not 0 <= group < self.groups:
            raise UsageError(f"{self.layer}: expected a group from 0 to {self.groups - 1}, got {group}")
        each = self.map[1] // self.groups
        own = mask[:, group * each : (group + 1) * each]
        if self.phase == Phase.BACKWARD_WEIGHT:
            whole = im2col(own, self.window, None, order).T
            return whole if columns is None else whole[:, columns]
        return im2col(self._spread(own), self.window, columns, order)

    def _spread(self, mask: Mask) -> Mask:
        """The map with the zeros between and behind its values."""
        if self.spread == (1, 1) and self.ends == (0, 0):
            return mask
        height, width = spread_sizes(mask.shape[2:], self.spread, self.ends)
        found = np.zeros((*mask.shape[:2], height, width), dtype=np.bool_)
        rows, columns = ((size - 1) * step + 1 for size, step in zip(mask.shape[2:], self.spread, strict=True))
        found[:, :, : rows : self.spread[0], : columns : self.spread[1]] = mask
        return found


def convolutions(layers: Iterable[ResolvedLayer]) -> tuple[ConvolutionGemm, ...]:
    """The products of all convolutions among resolved layers, in order."""
    return tuple(_gemm(each, each.layer) for each in layers if isinstance(each.layer, Convolution))


def _gemm(resolved: ResolvedLayer, layer: Convolution) -> ConvolutionGemm:
    (x,) = resolved.inputs
    images, channels, *sizes = x
    height, width = sizes if layer.rank == 2 else (1, *sizes)
    in_channels, out_channels = channels // layer.groups, layer.out_channels // layer.groups
    if layer.transposed:
        m, n, k, window = out_channels * prod(layer.kernel), images * height * width, in_channels, Conv2dGeometry()
    else:
        m, n, k = out_channels, images * prod(resolved.output[2:]), in_channels * prod(layer.kernel)
        window = Conv2dGeometry.of(
            _pair(layer.kernel, 1), _pair(layer.stride, 1), _pair(layer.padding, 0), _pair(layer.dilation, 1)
        )
    shape = images, channels, height, width
    return ConvolutionGemm(resolved.name, m, n, k, layer.groups, shape, window, summed=layer.transposed)


def _pair(values: tuple[int, ...], flat: int) -> Pair:
    """Height and width; a convolution over one axis has a height of one."""
    return (values[0], values[1]) if len(values) == 2 else (flat, values[0])


def _whole(size: int, tile: int) -> int:
    return -(-size // tile) * tile
