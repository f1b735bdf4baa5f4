"""Shapes, and the two rules by which a sliding window shrinks them."""

from __future__ import annotations

from math import ceil, prod

Shape = tuple[int, ...]
"""Sizes of a tensor, batch first: ``(N, C, H, W)``, ``(N, C, T)``, ``(N, T, F)``, ``(N, F)``."""


def elements(*shapes: Shape) -> int:
    """Number of elements in all the shapes together."""
    return sum(prod(shape) for shape in shapes)


def show(shape: Shape) -> str:
    """A shape as people write it.

    >>> show((128, 3, 227, 227))
    '128x3x227x227'
    """
    return "x".join(map(str, shape))


def window_floor(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Positions of a window that lies wholly inside the padded input (convolution; pooling by default).

    >>> window_floor(227, 11, 4, 0)
    55
    """
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def window_ceil(size: int, kernel: int, stride: int, padding: int, clip: bool) -> int:
    """Positions of a pooling window that may hang over the far edge.

    With ``clip`` a last window that would start beyond the input and its left padding is dropped:
    PyTorch always clips, DNNMark (after Caffe) only where both paddings are positive.

    >>> window_ceil(112, 3, 2, 0, clip=True)
    56
    """
    positions = ceil((size + 2 * padding - kernel) / stride) + 1
    if clip and (positions - 1) * stride >= size + padding:
        positions -= 1
    return positions


def transposed(size: int, kernel: int, stride: int, padding: int, dilation: int, extra: int) -> int:
    """Output size of a transposed convolution, ``extra`` being its output padding."""
    return (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1
