"""Convolution parameters: stride, padding, dilation and groups.

Along each axis ``y[t] = sum_k x[stride*t + dilation*k - padding] * w[k]``; ``transposed`` is the adjoint map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from lamina.errors import UsageError
from lamina.spec.shape import Shape, show, transposed, window_floor


@dataclass(frozen=True)
class Geometry:
    """Stride, padding and dilation along each of one or two axes, and the channel groups.

    Weights are ``(K, C/groups, *kernel)``, and ``(C, K/groups, *kernel)`` where ``transposed``.
    ``output_padding`` belongs to transposed convolutions; left out, it is zero on each axis.
    """

    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int = 1
    transposed: bool = False
    output_padding: Shape = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_padding", self.output_padding or (0,) * len(self.stride))
        lengths = {len(self.stride), len(self.padding), len(self.dilation), len(self.output_padding)}
        if lengths not in ({1}, {2}):
            raise UsageError(f"expected one value per axis for each of stride, padding and dilation, got {self}")
        if min(*self.stride, *self.dilation, self.groups) < 1 or min(*self.padding, *self.output_padding) < 0:
            raise UsageError(f"expected stride, dilation and groups >= 1 and paddings >= 0, got {self}")
        if any(self.output_padding) and not self.transposed:
            raise UsageError(f"output_padding needs transposed=True, got {self}")

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.stride)

    def extent(self, kernel_size: Sequence[int]) -> Shape:
        """Extent of a dilated kernel along each axis."""
        return tuple(d * (k - 1) + 1 for d, k in zip(self.dilation, kernel_size, strict=True))

    def output_size(self, input_size: Sequence[int], kernel_size: Sequence[int]) -> Shape:
        """Spatial size of the output; UsageError if it is empty."""
        axes = zip(input_size, kernel_size, self.stride, self.padding, self.dilation, strict=True)
        if self.transposed:
            size = tuple(transposed(*a, extra) for a, extra in zip(axes, self.output_padding, strict=True))
        else:
            size = tuple(window_floor(*a) for a in axes)
        if min(size) < 1:
            sizes = f"input {show(tuple(input_size))} and kernel {show(tuple(kernel_size))}"
            raise UsageError(
                f"convolution: expected a padded input at least as large as the kernel, got {sizes} with "
                f"{self}; enlarge the input or the padding"
            )
        return size

    def as_plane(self) -> Self:
        """The same convolution over two axes: a sequence is an image of height 1."""
        if self.rank == 2:
            return self
        return replace(
            self,
            stride=(1, *self.stride),
            padding=(0, *self.padding),
            dilation=(1, *self.dilation),
            output_padding=(0, *self.output_padding),
        )


def refuse_transposed(geometry: Geometry) -> str | None:
    """The reason why an algorithm without a transposed form does not support this geometry, or None."""
    return "does not support transposed convolutions; use 'direct'" if geometry.transposed else None
