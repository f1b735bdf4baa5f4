"""How much of a convolution one program takes: pure functions of the sizes, so that a test can ask them anything."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from lamina.accelerate.common.tiling import MULTIPROCESSORS, SHARED, between, power


@dataclass(frozen=True)
class Tile:
    """Rows, columns and summed numbers of one program's product, and its workers."""

    rows: int
    columns: int
    depth: int
    warps: int = 8
    stages: int = 3


def product_tile(rows: int, kept: int, summed: int, parts: int) -> Tile:
    """For ``rows`` pixels of ``kept`` channels, over ``summed`` channels of each tap."""
    high, wide, deep = between(16, power(rows), 128), between(16, power(kept), 128), depth_of(summed)
    if parts == 2:
        return _of_two(high, wide, deep)
    if kept >= 256 and rows >= 128:
        return Tile(high, 256, deep, stages=4)
    return Tile(high, wide, deep, warps=4, stages=3 if deep == 64 else 4)


def gradient_tile(rows: int, outputs: int, columns: int, parts: int) -> Tile:
    """For a weight gradient of ``outputs`` by ``columns``, which are taps of inputs, over ``rows`` pixels."""
    high, wide, deep = between(16, power(outputs), 128), between(16, power(columns), 128), between(16, power(rows), 64)
    return _of_two(high, wide, deep) if parts == 2 else Tile(high, wide, deep, warps=4)


def _of_two(high: int, wide: int, deep: int) -> Tile:
    """Four operands and a step's own sums are held: small, so that while one program adds these others multiply."""
    return Tile(high, min(wide, 64), min(deep, 32), warps=4)


def depth_of(summed: int) -> int:
    """As deep a step as leaves the fewest numbers of a tap empty."""
    return min((64, 32, 16), key=lambda depth: -(-summed // depth) * depth)


@lru_cache(maxsize=1024)
def shares(tiles: int, steps: int, numel: int, tile: Tile, parts: int) -> int:
    """Shares of the summed rows of a weight gradient of ``numel`` numbers, ``tiles`` of them, of ``steps`` each.

    Programs run in waves, as many at a time as shared memory holds, and each share is written and read again: the least
    time of both, at 3.5 TFLOP/s for each multiprocessor and 3 TB/s for all.
    """
    together = max(1, min(3, SHARED // (2 * parts * tile.depth * (tile.rows + tile.columns) * tile.stages)))
    step_us = (3 * parts - 2) * 2 * tile.rows * tile.columns * tile.depth / 3.5e6

    def time(number: int) -> float:
        waves = -(-tiles * number // (MULTIPROCESSORS * together))
        return waves * together * -(-steps // number) * step_us + number * numel * 8 / 3e6

    return min(range(1, max(2, min(steps // 4, 8 * MULTIPROCESSORS))), key=time)
