"""Tile sizes of the GEMM kernels, chosen by the sizes of the product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from lamina.accelerate.common.tiling import MULTIPROCESSORS, clamp, next_power_of_2
from lamina.errors import UsageError

MIN_WAVES = 4
"""Waves of programs from which on the largest ``block_n`` pays."""

MIN_STEPS = 8
"""The least number of K steps of each split."""


SHARED = 200 * 1024
"""Bytes of shared memory for the operands of one program."""

SHAPES = (
    *((16, 32), (16, 64), (16, 128), (32, 64), (32, 128), (64, 64), (64, 128), (128, 64)),
    *((128, 128), (64, 256), (128, 256), (256, 128)),
)
"""``block_m, block_n`` of the candidates."""


@dataclass(frozen=True)
class Tile:
    """Tile of one program: ``block_m x block_n`` outputs in steps of ``block_k``, with ``split_k`` partial sums.

    With ``block_m`` 1 the product is computed without tensor cores, each row of a linear layer by its own programs.
    """

    block_m: int
    block_n: int
    block_k: int
    split_k: int = 1
    num_warps: int = 4
    num_stages: int = 3

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n", "block_k"):
            size, least = getattr(self, name), 1 if self.block_m == 1 and name != "block_k" else 16
            if size < least or size & (size - 1):
                raise UsageError(f"tile: expected {name} to be a power of two of at least {least}, got {size}")
        if min(self.split_k, self.num_stages) < 1 or self.num_warps not in (1, 2, 4, 8, 16):
            raise UsageError(f"tile: expected split_k and num_stages of at least 1 and 1 to 16 warps, got {self}")

    def pack(self) -> list[int]:
        """All fields as a list of integers, as operator schemas have no other type for them."""
        return list(astuple(self))

    def shared_bytes(self, itemsize: int) -> int:
        """Bytes of operands in shared memory."""
        return (self.block_m + self.block_n) * self.block_k * itemsize * self.num_stages

    @classmethod
    def unpack(cls, values: Sequence[int]) -> Tile:
        """The inverse of `pack`."""
        return cls(*values)


def tf32x3(x: Tensor) -> bool:
    """Whether products of this dtype are 3xTF32, after `triton_ops.precision`."""
    return x.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32"


VECTOR = tuple(Tile(1, block_n, block_k, 1, 4, 2) for block_n, block_k in ((4, 512), (8, 512), (8, 256), (4, 1024)))
"""For one row; the fastest first."""


def linear_tile(rows: int, columns: int, summed: int, itemsize: int, tf32x3: bool = False) -> Tile:
    """As `product_tile`, for a linear layer: a single row is memory-bound by the weights."""
    return VECTOR[0] if rows == 1 else product_tile(rows, columns, summed, itemsize, tf32x3)


def product_tile(rows: int, columns: int, summed: int, itemsize: int, tf32x3: bool = False) -> Tile:
    """For ``(rows, summed)`` times ``(summed, columns)`` with elements of ``itemsize`` bytes.

    The largest tile that the sizes fill reads each operand the fewest times. A larger ``block_n`` pays with several
    waves of programs, a smaller tile where some multiprocessors would be idle. Then split-K increases until each
    multiprocessor has a program, as long as each split keeps eight steps.
    """
    many = -(-rows // 128) * (columns // 256) >= MIN_WAVES * MULTIPROCESSORS
    block_m = clamp(16, next_power_of_2(rows), 128)
    block_n = clamp(16, next_power_of_2(columns), 256 if many and columns % 256 == 0 and not tf32x3 else 128)
    block_k = clamp(16, next_power_of_2(summed), 64 if itemsize == 2 else 32)
    max_split_k = max(1, -(-summed // block_k) // MIN_STEPS)
    tiles = -(-rows // block_m) * -(-columns // block_n)
    while tiles * max_split_k < MULTIPROCESSORS and max(block_m, block_n) > 64:
        block_m, block_n = (block_m // 2, block_n) if block_m >= block_n else (block_m, block_n // 2)
        tiles = -(-rows // block_m) * -(-columns // block_n)
    split_k = max(1, min(MULTIPROCESSORS // max(tiles, 1), max_split_k))
    num_stages = 4 if block_m == 16 or tf32x3 else 3
    return Tile(block_m, block_n, block_k, split_k, _num_warps(block_m, block_n, tf32x3), num_stages)


def _num_warps(block_m: int, block_n: int, tf32x3: bool) -> int:
    """4, so that a multiprocessor holds two programs, unless the operands would exceed the registers."""
    return 8 if block_m * block_n > 128 * 128 or (tf32x3 and block_m * block_n == 128 * 128) else 4


def candidates(
    rows: int, columns: int, summed: int, itemsize: int, linear: bool = False, tf32x3: bool = False
) -> list[Tile]:
    """Tiles to time for one product; `product_tile` first."""
    if linear and rows == 1:
        return [*VECTOR]
    found = [product_tile(rows, columns, summed, itemsize, tf32x3)]
    for block_m, block_n in SHAPES:
        if block_m > clamp(16, 2 * next_power_of_2(rows), 256) or block_n > clamp(16, next_power_of_2(columns), 256):
            continue
        num_warps = _num_warps(block_m, block_n, tf32x3)
        for block_k in (64, 128) if itemsize == 2 else (32, 64):
            tiles, steps = -(-rows // block_m) * -(-columns // block_n), -(-summed // block_k)
            most = max(1, min(2 * MULTIPROCESSORS // tiles, steps // 4))
            for num_stages in (3, 4):
                for split_k in sorted({1, max(1, most // 2), most}):
                    found.append(Tile(block_m, block_n, block_k, split_k, num_warps, num_stages))
    return [tile for tile in dict.fromkeys(found) if tile.shared_bytes(itemsize) <= SHARED]
