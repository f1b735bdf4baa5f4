"""Which rows of a convolution's input meet which rows of its output. A row is one pixel of one example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.spec.shape import window_floor


@dataclass(frozen=True)
class Window:
    """A sliding window over ``batch`` images of ``height`` by ``width``; a linear layer's is one pixel wide."""

    batch: int
    height: int = 1
    width: int = 1
    kernel_height: int = 1
    kernel_width: int = 1
    stride_height: int = 1
    stride_width: int = 1
    padding_height: int = 0
    padding_width: int = 0
    dilation_height: int = 1
    dilation_width: int = 1
    groups: int = 1

    @property
    def out_height(self) -> int:
        """Rows of pixels that come out."""
        return window_floor(
            self.height, self.kernel_height, self.stride_height, self.padding_height, self.dilation_height
        )

    @property
    def out_width(self) -> int:
        """Pixels in each of them."""
        return window_floor(self.width, self.kernel_width, self.stride_width, self.padding_width, self.dilation_width)

    @property
    def taps(self) -> int:
        """Weights of one pair of channels."""
        return self.kernel_height * self.kernel_width

    @property
    def rows_in(self) -> int:
        """Pixels that go in, over the whole batch."""
        return self.batch * self.height * self.width

    @property
    def rows_out(self) -> int:
        """Pixels that come out, over the whole batch."""
        return self.batch * self.out_height * self.out_width

    @property
    def pointwise(self) -> bool:
        """Whether each row of the output meets the same row of the input alone."""
        steps = (self.stride_height, self.stride_width, self.padding_height, self.padding_width)
        return self.taps == 1 and steps == (1, 1, 0, 0)

    def pack(self) -> list[int]:
        """As the list of integers that an operator's schema can hold.

        Told one by one: `astuple` takes long, and not every ``torch.compile`` can trace a look at all fields.
        """
        sizes = (self.batch, self.height, self.width, self.kernel_height, self.kernel_width)
        steps = (self.stride_height, self.stride_width, self.padding_height, self.padding_width)
        return [*sizes, *steps, self.dilation_height, self.dilation_width, self.groups]

    @classmethod
    def unpack(cls, numbers: Sequence[int]) -> Window:
        """The inverse of `pack`."""
        return cls(*numbers)
