"""Tile sizes of the kernels, chosen by the sizes of the product."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.accelerate.common.tiling import MULTIPROCESSORS, clamp, next_power_of_2

SHARED = 200 * 1024
"""Bytes of shared memory for the stages of one program; the compiler needs the rest."""


@dataclass(frozen=True)
class Tile:
    """Tile of one program: ``block_m`` outputs by ``block_n`` rows in steps of ``block_k`` inputs, with split-K."""

    block_m: int
    block_n: int
    block_k: int
    split_k: int
    num_warps: int
    num_stages: int


def tile(outputs: int, rows: int, inputs: int, itemsize: int, x_itemsize: int) -> Tile:
    """For weights ``(outputs, inputs)`` of ``itemsize`` bytes and ``rows`` rows with ``x_itemsize`` bytes per weight.

    With few rows the product is memory-bound by the weights. Split-K then increases to two programs for each
    multiprocessor, as long as each split keeps eight steps.
    """
    block_m = clamp(16, next_power_of_2(outputs), 64 if rows <= 64 else 128)
    block_n = clamp(16, next_power_of_2(rows), 128)
    block_k = clamp(16, next_power_of_2(inputs), 128 if itemsize == 1 else 64)
    tiles = -(-outputs // block_m) * -(-rows // block_n)
    steps = -(-inputs // block_k)
    split_k = max(1, min(2 * MULTIPROCESSORS // max(tiles, 1), steps // 8)) if tiles < MULTIPROCESSORS else 1
    num_stages = clamp(2, SHARED // (block_k * (block_m * itemsize + block_n * x_itemsize)), 4)
    return Tile(block_m, block_n, block_k, split_k, 8 if block_m * block_n >= 128 * 128 else 4, num_stages)
