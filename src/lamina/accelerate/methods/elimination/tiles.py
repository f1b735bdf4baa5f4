"""How much of a product one program takes, by the sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from lamina.accelerate.common.tiling import MULTIPROCESSORS, clamp, next_power_of_2
from lamina.errors import UsageError

WAVES = 4
"""Of programs of the widest tile, from which on it pays."""

STEPS = 8
"""The least number of steps that a share of a split sum keeps."""


SHARED = 200 * 1024
"""Bytes of a multiprocessor's shared memory that the operands of one program may fill."""

SHAPES = (
    *((16, 32), (16, 64), (16, 128), (32, 64), (32, 128), (64, 64), (64, 128), (128, 64)),
    *((128, 128), (64, 256), (128, 256), (256, 128)),
)
"""Rows and columns of the candidates."""


@dataclass(frozen=True)
class Tile:
    """Rows, columns and summed elements of one program's product, in how many shares the sum is taken, and workers.

    ``stages`` are the steps whose operands are in shared memory at once. A tile of one row is multiplied without tensor
    cores, each row of a linear layer by programs of its own.
    """

    rows: int
    columns: int
    depth: int
    splits: int = 1
    warps: int = 4
    stages: int = 3

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "depth"):
            size, least = getattr(self, name), 1 if self.rows == 1 and name != "depth" else 16
            if size < least or size & (size - 1):
                raise UsageError(f"tile: expected {name} to be a power of two of at least {least}, got {size}")
        if min(self.splits, self.stages) < 1 or self.warps not in (1, 2, 4, 8, 16):
            raise UsageError(f"tile: expected splits and stages of at least 1 and 1 to 16 warps, got {self}")

    def pack(self) -> list[int]:
        """As the list of integers that an operator's schema can hold."""
        return list(astuple(self))

    def held(self, itemsize: int) -> int:
        """Bytes of operands in shared memory."""
        return (self.rows + self.columns) * self.depth * itemsize * self.stages

    @classmethod
    def unpack(cls, numbers: Sequence[int]) -> Tile:
        """The inverse of `pack`."""
        return cls(*numbers)


def thrice(x: Tensor) -> bool:
    """Whether each product of this tensor's numbers is made of three, as `triton_ops.precision` says."""
    return x.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32"


VECTOR = tuple(Tile(1, columns, depth, 1, 4, 2) for columns, depth in ((4, 512), (8, 512), (8, 256), (4, 1024)))
"""Of one row."""


def linear_tile(rows: int, columns: int, summed: int, itemsize: int, thrice: bool = False) -> Tile:
    """As `product_tile`, of a linear layer: a single row takes as long as its weights' bytes."""
    return VECTOR[0] if rows == 1 else product_tile(rows, columns, summed, itemsize, thrice)


def product_tile(rows: int, columns: int, summed: int, itemsize: int, thrice: bool = False) -> Tile:
    """For ``(rows, summed)`` times ``(summed, columns)`` of elements of ``itemsize`` bytes.

    The largest tile that the sizes fill reads each operand the fewest times; wider ones pay where there are several for
    every multiprocessor, and narrower ones where not all would have one. A sum is split until each of these has a
    program, as long as each share keeps eight steps.
    ``thrice``: float32 products are made of three.
    """
    many = -(-rows // 128) * (columns // 256) >= WAVES * MULTIPROCESSORS
    high = clamp(16, next_power_of_2(rows), 128)
    wide = clamp(16, next_power_of_2(columns), 256 if many and columns % 256 == 0 and not thrice else 128)
    deep = clamp(16, next_power_of_2(summed), 64 if itemsize == 2 else 32)
    shares = max(1, -(-summed // deep) // STEPS)
    tiles = -(-rows // high) * -(-columns // wide)
    while tiles * shares < MULTIPROCESSORS and max(high, wide) > 64:
        high, wide = (high // 2, wide) if high >= wide else (high, wide // 2)
        tiles = -(-rows // high) * -(-columns // wide)
    splits = max(1, min(MULTIPROCESSORS // max(tiles, 1), shares))
    return Tile(high, wide, deep, splits, _warps(high, wide, thrice), 4 if high == 16 or thrice else 3)


def _warps(high: int, wide: int, thrice: bool) -> int:
    """Few, so that a multiprocessor has two programs, unless operands in registers would not fit them."""
    return 8 if high * wide > 128 * 128 or (thrice and high * wide == 128 * 128) else 4


def candidates(
    rows: int, columns: int, summed: int, itemsize: int, linear: bool = False, thrice: bool = False
) -> list[Tile]:
    """Tiles worth timing for one product, the untimed choice first."""
    if linear and rows == 1:
        return [*VECTOR]
    found = [product_tile(rows, columns, summed, itemsize, thrice)]
    for high, wide in SHAPES:
        if high > clamp(16, 2 * next_power_of_2(rows), 256) or wide > clamp(16, next_power_of_2(columns), 256):
            continue
        for deep in (64, 128) if itemsize == 2 else (32, 64):
            tiles, steps = -(-rows // high) * -(-columns // wide), -(-summed // deep)
            most = max(1, min(2 * MULTIPROCESSORS // tiles, steps // 4))
            for stages in (3, 4):
                for splits in sorted({1, max(1, most // 2), most}):
                    found.append(Tile(high, wide, deep, splits, _warps(high, wide, thrice), stages))
    return [tile for tile in dict.fromkeys(found) if tile.held(itemsize) <= SHARED]
