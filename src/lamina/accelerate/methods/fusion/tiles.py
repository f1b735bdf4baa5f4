"""How much of a fused product, or of a pass over memory, one program takes: pure functions of the sizes."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.accelerate.common.tiling import MULTIPROCESSORS, clamp, next_power_of_2

ELEMENTS = 1024
"""Of a tile of a pass over memory."""


@dataclass(frozen=True)
class LinearTile:
    """Rows, columns and summed elements of one program's product, and in how many shares the sum is taken."""

    rows: int
    columns: int
    depth: int
    splits: int
    warps: int
    stages: int


@dataclass(frozen=True)
class PassTile:
    """Pixels (or rows) and channels (or columns) that one program of a pass over memory takes."""

    pixels: int
    channels: int
    warps: int = 4


def linear_tile(rows: int, columns: int, summed: int, itemsize: int) -> LinearTile:
    """For ``(rows, summed)`` times ``(summed, columns)`` of elements of ``itemsize`` bytes.

    The largest tile that the sizes fill moves the fewest bytes; a sum is split until every multiprocessor has a
    program, as long as each share keeps eight steps.
    """
    high, wide = clamp(16, next_power_of_2(rows), 128), clamp(16, next_power_of_2(columns), 128)
    deep = clamp(16, next_power_of_2(summed), 64 if itemsize == 2 else 32)
    tiles = -(-rows // high) * -(-columns // wide)
    steps = -(-summed // deep)
    splits = max(1, min(MULTIPROCESSORS // max(tiles, 1), steps // 8))
    return LinearTile(high, wide, deep, splits, 8 if high * wide >= 128 * 128 else 4, 3)


def pixel_tile(pixels: int, channels: int, channels_adjacent: bool) -> PassTile:
    """For a pass over images: long in the direction in which memory lies, with little beyond the edge."""
    if channels_adjacent:
        across = clamp(1, next_power_of_2(channels), 64)
        return PassTile(clamp(1, next_power_of_2(pixels), ELEMENTS // across), across)
    sides = [side for side in (1024, 512, 256, 128, 64) if side < 2 * pixels] or [next_power_of_2(pixels)]
    along = min(sides, key=lambda side: -(-pixels // side) * side)
    return PassTile(along, clamp(1, next_power_of_2(channels), ELEMENTS // along))


def row_tile(rows: int, columns: int) -> PassTile:
    """For a pass over a matrix that also sums its columns: as many rows as there are, up to 128."""
    return PassTile(clamp(1, next_power_of_2(rows), 128), clamp(1, next_power_of_2(columns), 32))
