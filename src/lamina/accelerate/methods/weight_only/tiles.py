"""How much of a product one program takes: a pure function of the sizes."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.accelerate.common.tiling import MULTIPROCESSORS, clamp, next_power_of_2

SHARED = 200 * 1024
"""Bytes of shared memory for the stages of one program, with room left for what the compiler adds."""


@dataclass(frozen=True)
class Tile:
    """Outputs, rows and summed inputs of one program, and in how many shares the sum is taken."""

    outputs: int
    rows: int
    depth: int
    splits: int
    warps: int
    stages: int


def tile(outputs: int, rows: int, inputs: int, itemsize: int, beside: int) -> Tile:
    """For weights ``(outputs, inputs)`` of ``itemsize`` bytes against ``rows`` rows of ``beside`` bytes for each.

    Few rows leave the weights to be streamed: every multiprocessor takes a share of the sum, in pieces of at least
    eight steps, until twice as many programs run as there are multiprocessors.
    """
    high = clamp(16, next_power_of_2(outputs), 64 if rows <= 64 else 128)
    wide = clamp(16, next_power_of_2(rows), 128)
    deep = clamp(16, next_power_of_2(inputs), 128 if itemsize == 1 else 64)
    tiles = -(-outputs // high) * -(-rows // wide)
    steps = -(-inputs // deep)
    splits = max(1, min(2 * MULTIPROCESSORS // max(tiles, 1), steps // 8)) if tiles < MULTIPROCESSORS else 1
    stages = clamp(2, SHARED // (deep * (high * itemsize + wide * beside)), 4)
    return Tile(high, wide, deep, splits, 8 if high * wide >= 128 * 128 else 4, stages)
