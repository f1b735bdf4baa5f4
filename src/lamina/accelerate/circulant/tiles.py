"""How much of a product one program takes: pure functions of the sizes, so that a test can ask them anything.

Tensor cores want every side of a tile to be a power of two and at least 16. The columns of a frequency-wise product
hold real and imaginary parts side by side, and so do the rows of a weight gradient: there 8 are enough.
"""

from __future__ import annotations

from dataclasses import dataclass

from lamina.accelerate.tiling import between, power


@dataclass(frozen=True)
class TransformTile:
    """Rows and blocks transformed by one program, and the slices of the basis it takes."""

    rows: int
    blocks: int
    depth: int
    columns: int
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True)
class ProductTile:
    """Rows, columns and summed elements of one program's product."""

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 3


def transform_tile(block_size: int, blocks: int, channels_adjacent: bool) -> TransformTile:
    """Many blocks a row where channels lie together in memory, many rows where pixels do."""
    most = 16 if channels_adjacent else 4
    across = min(power(blocks), most)
    side = between(16, power(block_size), 128)
    return TransformTile(64 // across, across, min(side, 64 if across == 16 else 32), side, stages=2)


def product_tile(rows: int, columns: int, summed: int) -> ProductTile:
    """For each frequency's product of ``rows`` by ``columns`` complex numbers, over ``summed`` real ones."""
    deep = _least_waste(summed, (64, 32, 16))
    wide = between(8, power(columns), 32)
    return ProductTile(between(16, power(rows), 128 if wide < 32 else 64), wide, deep)


def weight_tile(p: int, columns: int, rows: int, itemsize: int) -> ProductTile:
    """For each frequency's weight gradient, summed over ``rows``.

    Both its factors are read across what tensor cores sum. For two bytes they can turn them themselves; wider ones
    go through registers, and there a small tile is best.
    """
    high = 64 if itemsize == 2 else 32
    deep = between(16, power(rows), 64 if p <= 16 else 32)
    return ProductTile(between(8, power(p), high), _least_waste(columns, (32, 16)), deep)


def expand_tile(rows: int, columns: int, summed: int) -> ProductTile:
    """For a product with circulant tiles made on the fly: few rows, so narrow tiles to have enough of them."""
    return ProductTile(between(16, power(rows), 64), between(16, power(columns), 32), between(16, power(summed), 64))


def row_splits(programs: int, rows: int, depth: int) -> int:
    """Shares of the summed rows of a weight gradient, given the ``programs`` of one share.

    A program that sums all rows of a convolution would be the last to end by far, so none takes more than 8 steps,
    as long as there are no more than 8192 of them in all.
    """
    steps = -(-rows // depth)
    return max(1, min(-(-steps // 8), 8192 // programs))


def _least_waste(size: int, sides: tuple[int, ...]) -> int:
    """The side that covers ``size`` with the least beyond it, the first of equals."""
    return min(sides, key=lambda side: -(-size // side) * side)
