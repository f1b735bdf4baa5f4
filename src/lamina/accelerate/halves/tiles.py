"""How much of a convolution one program takes: pure functions of the sizes, so that a test can ask them anything."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.accelerate.tiling import between, power

PROCESSORS = 132
"""Multiprocessors of the GPU the tiles are made for."""


@dataclass(frozen=True)
class Tile:
    """Rows, columns and summed numbers of one program's product, and its workers."""

    rows: int
    columns: int
    depth: int
    warps: int = 8
    stages: int = 3


def product_tile(rows: int, kept: int, summed: int, parts: int) -> Tile:
    """For ``rows`` pixels of ``kept`` channels, over ``summed`` channels of each tap.

    Of two parts four operands are held, so steps are half as deep: then two programs fit on a multiprocessor, and one
    multiplies while the other starts or stores.
    """
    high, wide, deep = between(16, power(rows), 128), between(16, power(kept), 128), depth_of(summed)
    if parts == 2:
        return Tile(high, wide, min(deep, 32), warps=8 if wide == 128 else 4)
    if kept >= 256 and rows >= 128:
        return Tile(high, 256, deep, stages=4)
    return Tile(high, wide, deep, warps=4, stages=3 if deep == 64 else 4)


def gradient_tile(rows: int, outputs: int, columns: int, parts: int) -> Tile:
    """For a weight gradient of ``outputs`` by ``columns``, which are taps of inputs, over ``rows`` pixels."""
    high, wide, deep = between(16, power(outputs), 128), between(16, power(columns), 128), between(16, power(rows), 64)
    if parts == 1 or max(outputs, columns) < 256:
        return Tile(high, wide, deep if parts == 1 else min(deep, 32), warps=4)
    if outputs >= 256:
        return Tile(256, wide, min(deep, 32), stages=4)
    return Tile(high, 256, min(deep, 32), stages=4)


def depth_of(summed: int) -> int:
    """As deep a step as leaves the fewest numbers of a tap empty."""
    return min((64, 32, 16), key=lambda depth: -(-summed // depth) * depth)


def shares(tiles: int, steps: int, numel: int, parts: int) -> int:
    """Shares of the summed rows of a weight gradient of ``numel`` numbers, ``tiles`` of them, of ``steps`` each.

    Programs run in waves, and each share is written and read again: the least time of both, at 0.6 microseconds for
    each product of a step and 3 TB/s.
    """

    def time(number: int) -> float:
        waves = -(-tiles * number // PROCESSORS)
        return waves * -(-steps // number) * (0.6 if parts == 1 else 1.8) + number * numel * 8 / 3e6

    return min(range(1, max(2, min(steps // 4, 8 * PROCESSORS))), key=time)
