"""Tensor shapes, and the output sizes of sliding windows."""

from __future__ import annotations

from math import ceil, prod

Shape = tuple[int, ...]
"""Sizes of a tensor, batch first: ``(N, C, H, W)``, ``(N, C, T)``, ``(N, T, F)``, ``(N, F)``."""


def elements(*shapes: Shape) -> int:
    """Total number of elements of the shapes."""
    return sum(prod(shape) for shape in shapes)


def show(shape: Shape) -> str:
    """A shape as text.

    >>> show((128, 3, 227, 227))
    '128x3x227x227'
    """
    return "x".join(map(str, shape))


def parse(text: str) -> Shape | None:
    """The shape that `show` writes so, or nothing.

    >>> parse("3x224x224")
    (3, 224, 224)
    """
    sizes = text.split("x")
    return tuple(map(int, sizes)) if all(size.isdecimal() and int(size) > 0 for size in sizes) else None


def window_floor(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Output size of a window that stays inside the padded input (convolution; default of pooling).

    >>> window_floor(227, 11, 4, 0)
    55
    """
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def window_ceil(size: int, kernel: int, stride: int, padding: int, clip: bool) -> int:
    """Output size of a pooling window that may extend beyond the end (ceil mode).

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
