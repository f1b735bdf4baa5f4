"""Tile shapes of split-fp16 convolutions, as pure functions of the problem sizes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from lamina.accelerate.common.tiling import MULTIPROCESSORS, SHARED_MEMORY, clamp, next_power_of_2


@dataclass(frozen=True)
class Tile:
    """The matmul tile of a program and its launch options."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int = 8
    num_stages: int = 3


def conv_tile(rows: int, kept: int, summed: int, terms: int) -> Tile:
    """For ``rows`` pixels of ``kept`` channels, summed over ``summed`` channels of each tap."""
    block_m, block_n, block_k = (
        clamp(16, next_power_of_2(rows), 128),
        clamp(16, next_power_of_2(kept), 128),
        block_k_of(summed),
    )
    if terms == 2:
        return _two_term_tile(block_m, block_n, block_k)
    if kept >= 256 and rows >= 128:
        return Tile(block_m, 256, block_k, num_stages=4)
    return Tile(block_m, block_n, block_k, num_warps=4, num_stages=3 if block_k == 64 else 4)


def backward_weight_tile(rows: int, outputs: int, columns: int, terms: int) -> Tile:
    """For a weight gradient of ``outputs`` by ``columns``, which are taps times inputs, summed over ``rows`` pixels."""
    block_m, block_n = clamp(16, next_power_of_2(outputs), 128), clamp(16, next_power_of_2(columns), 128)
    block_k = clamp(16, next_power_of_2(rows), 64)
    if terms == 2:
        return _two_term_tile(block_m, block_n, block_k)
    return Tile(block_m, block_n, block_k, num_warps=4)


def _two_term_tile(block_m: int, block_n: int, block_k: int) -> Tile:
    """Four operands and a separate accumulator per iteration: small, so that programs overlap their additions."""
    return Tile(block_m, min(block_n, 64), min(block_k, 32), num_warps=4)


def block_k_of(summed: int) -> int:
    """The ``block_k`` that pads the ``summed`` channels of a tap least."""
    return min((64, 32, 16), key=lambda block_k: -(-summed // block_k) * block_k)


@lru_cache(maxsize=1024)
def split_k_for(tiles: int, iterations: int, numel: int, tile: Tile, terms: int) -> int:
    """``split_k`` of a weight gradient of ``numel`` elements in ``tiles`` tiles of ``iterations`` each.

    Minimizes a time model: programs run in waves of as many as shared memory holds, at 3.5 TFLOP/s per multiprocessor,
    and each split writes its partial sums, which are read once more, at 3 TB/s.
    """
    stage_bytes = 2 * terms * tile.block_k * (tile.block_m + tile.block_n)
    resident = max(1, min(3, SHARED_MEMORY // (stage_bytes * tile.num_stages)))
    iteration_us = (3 * terms - 2) * 2 * tile.block_m * tile.block_n * tile.block_k / 3.5e6

    def time_us(split_k: int) -> float:
        waves = -(-tiles * split_k // (MULTIPROCESSORS * resident))
        return waves * resident * -(-iterations // split_k) * iteration_us + split_k * numel * 8 / 3e6

    return min(range(1, max(2, min(iterations // 4, 8 * MULTIPROCESSORS))), key=time_us)
