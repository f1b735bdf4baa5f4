"""Which pixels a convolution's window reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from lamina.errors import UsageError
from lamina.spec.shape import window_floor


@dataclass(frozen=True)
class Window:
    """A sliding window; a linear layer's is one pixel."""

    kernel_height: int = 1
    kernel_width: int = 1
    stride_height: int = 1
    stride_width: int = 1
    padding_height: int = 0
    padding_width: int = 0
    dilation_height: int = 1
    dilation_width: int = 1

    @property
    def taps(self) -> int:
        """Weights of one pair of channels."""
        return self.kernel_height * self.kernel_width

    @property
    def pixel(self) -> bool:
        """Whether each pixel is a window of its own."""
        return self == Window()

    @property
    def strided(self) -> bool:
        """Whether windows are further apart than pixels."""
        return (self.stride_height, self.stride_width) != (1, 1)

    def output(self, height: int, width: int) -> tuple[int, int]:
        """Sizes after the convolution.

        Raises:
            UsageError: the image is smaller than the window.
        """
        kh, kw, sh, sw, ph, pw, dh, dw = self.pack()
        out = window_floor(height, kh, sh, ph, dh), window_floor(width, kw, sw, pw, dw)
        if min(out) < 1:
            raise UsageError(
                f"x: expected a padded image at least as large as the {kh}x{kw} window with dilation {dh}x{dw}, "
                f"got {height}x{width} with padding {ph}x{pw}"
            )
        return out

    def transposed(self) -> Window:
        """The window whose convolution of the output's gradient gives the input's, for strides of 1."""
        kh, kw, _, _, ph, pw, dh, dw = self.pack()
        return Window(kh, kw, 1, 1, dh * (kh - 1) - ph, dw * (kw - 1) - pw, dh, dw)

    def switches(self) -> dict[str, Any]:
        """As kernels are told of it."""
        names = ("KH", "KW", "SH", "SW", "PH", "PW", "DH", "DW")
        return dict(zip(names, self.pack(), strict=True))

    def pack(self) -> list[int]:
        """As the list of integers that an operator's schema can hold."""
        return list(astuple(self))

    @classmethod
    def of(
        cls, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
    ) -> Window:
        """From the numbers of a convolution, height before width."""
        return cls(*kernel, *stride, *padding, *dilation)
