"""Geometry of 2d convolutions and poolings: how a kernel moves over an image. Height comes before width everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from lamina.errors import UsageError
from lamina.spec.shape import window_ceil, window_floor

Pair = tuple[int, int]
"""Sizes along height and width."""


@dataclass(frozen=True)
class Window2dGeometry:
    """Kernel size, stride and padding of a window that moves over an image."""

    kernel_height: int = 1
    kernel_width: int = 1
    stride_height: int = 1
    stride_width: int = 1
    padding_height: int = 0
    padding_width: int = 0

    @property
    def kernel(self) -> Pair:
        """Size of the kernel."""
        return self.kernel_height, self.kernel_width

    @property
    def stride(self) -> Pair:
        """Pixels between neighbouring windows."""
        return self.stride_height, self.stride_width

    @property
    def padding(self) -> Pair:
        """Pixels at either end of each axis: zeros of a convolution, no values of a pooling."""
        return self.padding_height, self.padding_width

    @property
    def taps(self) -> int:
        """Pixels of a window."""
        return self.kernel_height * self.kernel_width


@dataclass(frozen=True)
class Conv2dGeometry(Window2dGeometry):
    """Kernel size, stride, padding and dilation of a 2d convolution; by default of a 1x1 convolution."""

    dilation_height: int = 1
    dilation_width: int = 1

    @classmethod
    def of(
        cls,
        kernel: Sequence[int],
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0),
        dilation: Sequence[int] = (1, 1),
    ) -> Conv2dGeometry:
        """The geometry with these sizes, each along height and width."""
        return Conv2dGeometry(*kernel, *stride, *padding, *dilation)

    @property
    def dilation(self) -> Pair:
        """Pixels between neighbouring taps."""
        return self.dilation_height, self.dilation_width

    @property
    def pointwise(self) -> bool:
        """Whether each output pixel depends on the input pixel of the same position only."""
        return self.taps == 1 and self.stride == (1, 1) and self.padding == (0, 0)

    @property
    def strided(self) -> bool:
        """Whether a stride is larger than 1."""
        return self.stride != (1, 1)

    def positions(self, height: int, width: int) -> Pair:
        """Output size for an input of ``height x width``; below 1 where the padded input is smaller than the kernel."""
        return (
            window_floor(height, self.kernel_height, self.stride_height, self.padding_height, self.dilation_height),
            window_floor(width, self.kernel_width, self.stride_width, self.padding_width, self.dilation_width),
        )

    def output_size(self, height: int, width: int) -> Pair:
        """Output size for an input of ``height x width``.

        Raises:
            UsageError: the padded input is smaller than the kernel.
        """
        size = self.positions(height, width)
        if min(size) < 1:
            (kh, kw), (ph, pw), (dh, dw) = self.kernel, self.padding, self.dilation
            raise UsageError(
                f"x: expected a padded image at least as large as the {kh}x{kw} kernel with dilation {dh}x{dw}, "
                f"got {height}x{width} with padding {ph}x{pw}"
            )
        return size

    def transposed(self) -> Conv2dGeometry:
        """The geometry that maps output gradients to input gradients, for strides of 1."""
        (kh, kw), (ph, pw), (dh, dw) = self.kernel, self.padding, self.dilation
        return Conv2dGeometry(kh, kw, 1, 1, dh * (kh - 1) - ph, dw * (kw - 1) - pw, dh, dw)

    def constexprs(self) -> dict[str, int]:
        """The sizes by the names of kernels' constants: ``KH, KW, SH, SW, PH, PW, DH, DW``."""
        return {
            "KH": self.kernel_height, "KW": self.kernel_width, "SH": self.stride_height, "SW": self.stride_width,
            "PH": self.padding_height, "PW": self.padding_width, "DH": self.dilation_height, "DW": self.dilation_width,
        }  # fmt: skip

    def pack(self) -> list[int]:
        """All fields as a list of integers, as operator schemas have no other type for them.

        Written out, since ``dataclasses.astuple`` is slow and ``torch.compile`` cannot always trace it.
        """
        return [
            self.kernel_height, self.kernel_width, self.stride_height, self.stride_width,
            self.padding_height, self.padding_width, self.dilation_height, self.dilation_width,
        ]  # fmt: skip

    @classmethod
    def unpack(cls, values: Sequence[int]) -> Self:
        """The inverse of `pack`."""
        return cls(*values)


@dataclass(frozen=True)
class Pool2dGeometry(Window2dGeometry):
    """Kernel size, stride, padding and rounding of a 2d pooling without dilation; by default the identity.

    Raises:
        UsageError: a size is below 1, or a padding is more than half of the kernel.
    """

    ceil_mode: bool = False

    def __post_init__(self) -> None:
        sizes = (*self.kernel, *self.stride)
        if min(sizes) < 1:
            raise UsageError(f"pooling: expected kernels and strides of at least 1, got {sizes}")
        for name, kernel, padding in zip(("height", "width"), self.kernel, self.padding, strict=True):
            if not 0 <= 2 * padding <= kernel:
                raise UsageError(f"pooling: expected a padding of at most half the {name} {kernel}, got {padding}")

    @property
    def pointwise(self) -> bool:
        """Whether it is the identity."""
        return self.taps == 1 and self.stride == (1, 1)

    def positions(self, height: int, width: int) -> Pair:
        """Output size for an input of ``height x width``; below 1 where the padded input is smaller than the kernel."""
        down, across = zip((height, width), self.kernel, self.stride, self.padding, strict=True)
        if self.ceil_mode:
            return window_ceil(*down, clip=True), window_ceil(*across, clip=True)
        return window_floor(*down), window_floor(*across)

    def output_size(self, height: int, width: int) -> Pair:
        """Output size for an input of ``height x width``.

        Raises:
            UsageError: the padded input is smaller than the kernel.
        """
        size = self.positions(height, width)
        if min(size) < 1:
            raise UsageError(
                f"pooling: expected an image of at least {self.kernel_height}x{self.kernel_width}, got {height}x{width}"
            )
        return size

    def constexprs(self) -> dict[str, int]:
        """The sizes by the names of kernels' constants: ``KH, KW, SH, SW, PH, PW``."""
        return {
            "KH": self.kernel_height, "KW": self.kernel_width, "SH": self.stride_height, "SW": self.stride_width,
            "PH": self.padding_height, "PW": self.padding_width,
        }  # fmt: skip

    def pack(self) -> list[int]:
        """All fields as a list of integers, as operator schemas have no other type for them."""
        return [*self.kernel, *self.stride, *self.padding, int(self.ceil_mode)]

    @classmethod
    def unpack(cls, values: Sequence[int]) -> Self:
        """The inverse of `pack`."""
        kh, kw, sh, sw, ph, pw, ceil_mode = values
        return cls(kh, kw, sh, sw, ph, pw, bool(ceil_mode))
