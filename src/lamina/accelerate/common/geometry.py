"""The geometry of convolutions and poolings for all methods, and of a convolution together with its input."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.spec.geometry import Conv2dGeometry, Pair, Pool2dGeometry

__all__ = ["Conv2dGeometry", "Conv2dProblem", "Pair", "Pool2dGeometry"]


@dataclass(frozen=True)
class _Images:
    batch: int
    height: int = 1
    width: int = 1


@dataclass(frozen=True)
class Conv2dProblem(Conv2dGeometry, _Images):
    """A convolution of ``batch`` images of ``height x width`` in ``groups``. A linear layer has images of one pixel.

    Fields in order: ``batch, height, width``, those of `Conv2dGeometry`, ``groups``. A row of its matrices is one pixel
    of one image.
    """

    groups: int = 1

    @property
    def out_height(self) -> int:
        """Height of the output."""
        return self.positions(self.height, self.width)[0]

    @property
    def out_width(self) -> int:
        """Width of the output."""
        return self.positions(self.height, self.width)[1]

    @property
    def rows_in(self) -> int:
        """Input pixels, over the whole batch."""
        return self.batch * self.height * self.width

    @property
    def rows_out(self) -> int:
        """Output pixels, over the whole batch."""
        return self.batch * self.out_height * self.out_width

    def pack(self) -> list[int]:
        """All fields as a list of integers, as operator schemas have no other type for them."""
        return [self.batch, self.height, self.width, *Conv2dGeometry.pack(self), self.groups]
