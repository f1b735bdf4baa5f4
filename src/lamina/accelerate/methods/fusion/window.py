"""Which pixels a pooling window covers, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from lamina.errors import UsageError
from lamina.spec.shape import window_ceil, window_floor

MOST_PIXELS = 127
"""Of one window: which of them was the largest is kept in one signed byte."""


@dataclass(frozen=True)
class PoolWindow:
    """A max-pooling window; one pixel wide and high, it is no pooling at all."""

    kernel_height: int = 1
    kernel_width: int = 1
    stride_height: int = 1
    stride_width: int = 1
    padding_height: int = 0
    padding_width: int = 0
    ceil: bool = False

    def __post_init__(self) -> None:
        sizes = (self.kernel_height, self.kernel_width, self.stride_height, self.stride_width)
        if min(sizes) < 1:
            raise UsageError(f"pooling: expected kernels and strides of at least 1, got {sizes}")
        pixels = self.kernel_height * self.kernel_width
        if pixels > MOST_PIXELS:
            raise UsageError(f"pooling: expected a window of at most {MOST_PIXELS} pixels, got {pixels}")
        for name, kernel, padding in (
            ("height", self.kernel_height, self.padding_height),
            ("width", self.kernel_width, self.padding_width),
        ):
            if not 0 <= 2 * padding <= kernel:
                raise UsageError(f"pooling: expected a padding of at most half the {name} {kernel}, got {padding}")

    @property
    def pointwise(self) -> bool:
        """Whether each pixel is a window of its own."""
        return self == PoolWindow()

    def output(self, height: int, width: int) -> tuple[int, int]:
        """Sizes after pooling.

        Raises:
            UsageError: the image is smaller than the window.
        """
        sides = (
            (height, self.kernel_height, self.stride_height, self.padding_height),
            (width, self.kernel_width, self.stride_width, self.padding_width),
        )
        out = tuple(window_ceil(*side, clip=True) if self.ceil else window_floor(*side) for side in sides)
        if min(out) < 1:
            raise UsageError(
                f"pooling: expected an image of at least {self.kernel_height}x{self.kernel_width}, got {height}x{width}"
            )
        return out[0], out[1]

    def pack(self) -> list[int]:
        """As the list of integers that an operator's schema can hold."""
        return [int(number) for number in astuple(self)]

    @classmethod
    def unpack(cls, numbers: Sequence[int]) -> PoolWindow:
        """The inverse of `pack`."""
        kernel_height, kernel_width, stride_height, stride_width, padding_height, padding_width, ceil = numbers
        return cls(kernel_height, kernel_width, stride_height, stride_width, padding_height, padding_width, bool(ceil))
