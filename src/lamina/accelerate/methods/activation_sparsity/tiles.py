"""How much one program of each kernel takes: pure functions of the sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from lamina.accelerate.common.tiling import MULTIPROCESSORS, clamp, next_power_of_2
from lamina.accelerate.methods.activation_sparsity.window import Window
from lamina.errors import UsageError

WIDTHS = (16, 32, 64, 128)
"""Numbers of neighbouring columns whose rows are united: those that the sparsity monitor counts."""

LARGE = 32
"""Pixels of an image that has a list of its own."""


@dataclass(frozen=True)
class Tile:
    """Outputs, columns and depth of one program, and its workers.

    Depth is rows at a time where a matrix is read, and slots at a time where its format is.
    """

    outputs: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 2

    def __post_init__(self) -> None:
        for name in ("outputs", "columns", "depth", "warps"):
            size = getattr(self, name)
            if size < 1 or size & (size - 1):
                raise UsageError(f"tile: expected {name} to be a power of two, got {size}")
        if self.warps > 16 or self.stages < 1:
            raise UsageError(f"tile: expected 1 to 16 warps and at least one stage, got {self}")

    def pack(self) -> list[int]:
        """As the list of integers that an operator's schema can hold."""
        return list(astuple(self))

    @classmethod
    def unpack(cls, numbers: Sequence[int]) -> Tile:
        """The inverse of `pack`."""
        return cls(*numbers)


def convert_tile(rows: int, columns: int, panels: int) -> Tile:
    """For one pass over a matrix: narrow tiles until every multiprocessor has several."""
    wide = 64 if panels * -(-columns // 64) >= 8 * MULTIPROCESSORS else 32
    return Tile(1, clamp(1, next_power_of_2(columns), wide), clamp(1, next_power_of_2(rows), 64))


def nonzero_tile(outputs: int, columns: int) -> Tile:
    """For products of single non-zeros: outputs are contiguous loads, columns share nothing but the program."""
    high = clamp(16, next_power_of_2(outputs), 128)
    wide = clamp(8, next_power_of_2(columns), 32)
    while wide > 8 and -(-columns // wide) * -(-outputs // high) < 2 * MULTIPROCESSORS:
        wide //= 2
    return Tile(high, wide, 4)


def union_tile(outputs: int, columns: int) -> Tile:
    """For products over united rows, of a width that unions are known for, so that predictions hold."""
    return Tile(clamp(16, next_power_of_2(outputs), 128), clamp(16, next_power_of_2(columns), 64), 32, 4, 3)


def living_tile(outputs: int, columns: int, parts: int = 2) -> Tile:
    """For products over images' living channels: wide, so that tensor cores wait less for what they read.

    ``parts`` of weights: without halves little is read, and narrow tiles fill a GPU more evenly.
    """
    high = 64 if 0 < outputs % 128 <= 64 < outputs else clamp(16, next_power_of_2(outputs), 128)
    if parts and high == 128 and -(-columns // 128) * -(-outputs // 128) >= MULTIPROCESSORS:
        return Tile(high, 128, 64, 8, 3)
    return Tile(high, 128 if high < 128 else 64, 32, 4, 4 if not parts else 3)


def columns_per_list(images: int, height: int, width: int, window: Window) -> int:
    """Pixels that share a list of living channels: an image's where it is large enough, or 0 where tiles have lists."""
    large = images > 1 and height * width >= LARGE
    return height * width if large or not window.pixel else 0
