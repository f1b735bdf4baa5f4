"""Tile sizes of the kernels: pure functions of the problem size."""


from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.common.tiling import MULTIPROCESSORS, clamp, next_power_of_2
from lamina.errors import UsageError

WIDTHS = (16, 32, 64, 128)
"""Tile widths for which the sparsity monitor counts the row union."""

MIN_PIXELS_PER_LIST = 32
"""Pixels from which an image has a channel list of its own."""


@dataclass(frozen=True)
class Tile:
    """The tile and launch options of one program.

    Attributes:
        block_m: outputs.
        block_n: columns.
        block_k: rows per step; slots per step where ELLPACK-DIB is read.
        num_warps, num_stages: as Triton's.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int = 4
    num_stages: int = 2

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n", "block_k", "num_warps"):
            size = getattr(self, name)
            if size < 1 or size & (size - 1):
                raise UsageError(f"tile: expected {name} to be a power of two, got {size}")
        if self.num_warps > 16 or self.num_stages < 1:
            raise UsageError(f"tile: expected 1 to 16 warps and at least one stage, got {self}")

    def pack(self) -> list[int]:
        """As a list of integers, which an operator's schema can hold."""
        return list(astuple(self))

    @classmethod
    def unpack(cls, values: Sequence[int]) -> Tile:
        """The inverse of `pack`."""
        return cls(*values)


def to_ellpack_tile(rows: int, columns: int, panels: int) -> Tile:
    """For one pass over a matrix: narrow tiles until each multiprocessor has several."""
    block_n = 64 if panels * -(-columns // 64) >= 8 * MULTIPROCESSORS else 32
    return Tile(1, clamp(1, next_power_of_2(columns), block_n), clamp(1, next_power_of_2(rows), 64))


def nonzero_tile(outputs: int, columns: int) -> Tile:
    """For products of single non-zeros: outputs are contiguous loads; columns have no reuse."""
    block_m = clamp(16, next_power_of_2(outputs), 128)
    block_n = clamp(8, next_power_of_2(columns), 32)
    while block_n > 8 and -(-columns // block_n) * -(-outputs // block_m) < 2 * MULTIPROCESSORS:
        block_n //= 2
    return Tile(block_m, block_n, 4)


def row_union_tile(outputs: int, columns: int) -> Tile:
    """For row-union products; ``block_n`` is one of `WIDTHS`, so that the density the monitor counts applies."""
    return Tile(clamp(16, next_power_of_2(outputs), 128), clamp(16, next_power_of_2(columns), 64), 32, 4, 3)


def compacted_conv_tile(outputs: int, columns: int, w_terms: int = 2) -> Tile:
    """For convolutions over active channels: large tiles, for more reuse by tensor cores.

    ``w_terms`` of weights: without split-fp16 there is less to read, and narrow tiles balance the load better.
    """
    block_m = 64 if 0 < outputs % 128 <= 64 < outputs else clamp(16, next_power_of_2(outputs), 128)
    if w_terms and block_m == 128 and -(-columns // 128) * -(-outputs // 128) >= MULTIPROCESSORS:
        return Tile(block_m, 128, 64, 8, 3)
    return Tile(block_m, 128 if block_m < 128 else 64, 32, 4, 4 if not w_terms else 3)


def columns_per_list(images: int, height: int, width: int, window: Conv2dGeometry) -> int:
    """Columns that have one row list: the pixels of an image if it is large enough, or 0 where each tile has one."""
    large = images > 1 and height * width >= MIN_PIXELS_PER_LIST
    return height * width if large or not window.pointwise else 0
