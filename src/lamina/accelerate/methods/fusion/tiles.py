"""Tile sizes of the fused GEMM and of elementwise and reduction kernels, chosen by the sizes."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.accelerate.common.tiling import MULTIPROCESSORS, clamp, next_power_of_2

ELEMENTS = 1024
"""Elements of a tile of an elementwise or reduction kernel."""


@dataclass(frozen=True)
class LinearTile:
    """Tile of one program: ``block_m x block_n`` outputs in steps of ``block_k``, with ``split_k`` partial sums."""

    block_m: int
    block_n: int
    block_k: int
    split_k: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class PassTile:
    """Pixels (or rows) and channels (or columns) of one program of an elementwise or reduction kernel."""

    pixels: int
    channels: int
    num_warps: int = 4


def linear_tile(rows: int, columns: int, summed: int, itemsize: int) -> LinearTile:
    """For ``(rows, summed)`` times ``(summed, columns)`` with elements of ``itemsize`` bytes.

    The largest tile that the sizes fill moves the fewest bytes. Split-K increases until each multiprocessor has a
    program, as long as each split keeps eight steps.
    """
    block_m, block_n = clamp(16, next_power_of_2(rows), 128), clamp(16, next_power_of_2(columns), 128)
    block_k = clamp(16, next_power_of_2(summed), 64 if itemsize == 2 else 32)
    tiles = -(-rows // block_m) * -(-columns // block_n)
    steps = -(-summed // block_k)
    split_k = max(1, min(MULTIPROCESSORS // max(tiles, 1), steps // 8))
    return LinearTile(block_m, block_n, block_k, split_k, 8 if block_m * block_n >= 128 * 128 else 4, 3)


def pixel_tile(pixels: int, channels: int, channels_adjacent: bool) -> PassTile:
    """For images: long along the contiguous axis, with little padding at the edge."""
    if channels_adjacent:
        block_c = clamp(1, next_power_of_2(channels), 64)
        return PassTile(clamp(1, next_power_of_2(pixels), ELEMENTS // block_c), block_c)
    sides = [side for side in (1024, 512, 256, 128, 64) if side < 2 * pixels] or [next_power_of_2(pixels)]
    block_p = min(sides, key=lambda side: -(-pixels // side) * side)
    return PassTile(block_p, clamp(1, next_power_of_2(channels), ELEMENTS // block_p))


def row_tile(rows: int, columns: int) -> PassTile:
    """For a matrix whose columns are summed too: all rows, up to 128."""
    return PassTile(clamp(1, next_power_of_2(rows), 128), clamp(1, next_power_of_2(columns), 32))
