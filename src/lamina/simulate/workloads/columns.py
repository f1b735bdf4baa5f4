"""The matrix of columns (im2col) that a convolution reads from a mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lamina.errors import UsageError
from lamina.spec.geometry import Conv2dGeometry, Pair

Mask = NDArray[np.bool_]
"""True where a value is non-zero."""
Order = Literal["channel", "tap"]
"""Order within a column: all taps of a channel together, as in ``torch.nn.functional.unfold``, or all channels of a
tap. It determines which values share a cache line."""
VALUES_PER_LINE = 16
"""fp32 values in a line of 64 bytes."""


def spread_sizes(sizes: Sequence[int], spread: Pair, ends: Pair) -> Pair:
    """Height and width of a map whose values are ``spread`` apart, with ``ends`` zeros behind them."""
    height, width = ((size - 1) * step + 1 + end for size, step, end in zip(sizes, spread, ends, strict=True))
    return height, width


def inside(
    geometry: Conv2dGeometry, height: int, width: int, spread: Pair = (1, 1), ends: Pair = (0, 0)
) -> float:
    """Fraction of the taps, over all windows, that read a value of a map of this size; the others read zeros of
    padding, or those between and behind values that are ``spread`` apart."""
    fraction, sizes = 1.0, spread_sizes((height, width), spread, ends)
    for axis, (size, count) in enumerate(zip((height, width), geometry.positions(*sizes), strict=True)):
        taps = np.arange(geometry.kernel[axis]) * geometry.dilation[axis]
        start = np.arange(count) * geometry.stride[axis] - geometry.padding[axis]
        at = taps[:, None] + start
        fraction *= float(np.mean((at >= 0) & (at % spread[axis] == 0) & (at < size * spread[axis])))
    return fraction


def im2col(mask: Mask, geometry: Conv2dGeometry, columns: range | None = None, order: Order = "channel") -> Mask:
    """Columns of the matrix B that a convolution reads from a map: [C * taps, columns]; taps on padding are zero.

    Args:
        mask: the map, [N, C, H, W].
        geometry: the convolution's.
        columns: which columns; all by default. Column ``(n * OH + y) * OW + x`` belongs to output (y, x) of image n.
        order: what varies fastest within a column: taps (``channel``) or channels (``tap``).

    Raises:
        UsageError: the mask does not have four axes, is smaller than the window, or has no such columns.
    """
    if mask.ndim != 4:
        raise UsageError(f"im2col: expected a mask of four axes [N, C, H, W], got {list(mask.shape)}")
    images, channels, height, width = mask.shape
    out_height, out_width = geometry.positions(height, width)
    if out_height < 1 or out_width < 1:
        raise UsageError(
            f"im2col: expected a map at least as large as the kernel {geometry.kernel} after padding, "
            f"got {height} x {width}"
        )
    count = images * out_height * out_width
    chosen = np.array(range(count) if columns is None else columns, dtype=np.int64)
    if chosen.size == 0:
        return np.zeros((channels * geometry.taps, 0), dtype=np.bool_)
    if chosen.min() < 0 or chosen.max() >= count:
        raise UsageError(f"im2col: expected columns from 0 to {count - 1}, got {columns}")
    image, position = np.divmod(chosen, out_height * out_width)
    row, column = np.divmod(position, out_width)
    first = int(image.min())
    around = ((0, 0), (0, 0), *((size, size) for size in geometry.padding))
    padded = np.pad(mask[first : int(image.max()) + 1], around)
    taps = [
        padded[
            image - first,
            :,
            row * geometry.stride[0] + y * geometry.dilation[0],
            column * geometry.stride[1] + x * geometry.dilation[1],
        ]
        for y in range(geometry.kernel[0])
        for x in range(geometry.kernel[1])
    ]
    axes = (2, 0, 1) if order == "channel" else (0, 2, 1)
    return np.stack(taps).transpose(axes).reshape(channels * geometry.taps, -1)


def line_density(columns: Mask, read: NDArray[np.int64] | None = None) -> float:
    """Fraction of 64-byte lines with a non-zero; each column of [K, columns] starts at a line.

    Args:
        columns: non-zeros, [K, columns].
        read: how often each column occurs in the matrix, [columns]; once by default.

    Raises:
        UsageError: there are no rows or no columns.
    """
    rows, count = columns.shape
    if not rows or not count:
        raise UsageError(f"line_density: expected rows and columns, got {rows} x {count}")
    padded = np.pad(columns, ((0, -rows % VALUES_PER_LINE), (0, 0)))
    return float(np.average(padded.reshape(-1, VALUES_PER_LINE, count).any(axis=1).mean(axis=0), weights=read))
