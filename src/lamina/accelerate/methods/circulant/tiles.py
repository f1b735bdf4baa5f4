"""How much of a product one program takes: pure functions of the sizes, so that a test can ask them anything.

Tensor cores want every side of a tile to be a power of two and at least 16. The columns of a frequency-wise product
hold real and imaginary parts side by side, and so do the rows of a weight gradient: there 8 are enough.

Tiles are remembered: a layer asks for the same ones in every step, and the host has little time for a short kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from lamina.accelerate.common.tiling import SHARED, between, power

FEWEST = 128
"""Programs of a transform, where there is work for so many: about one for each processor of a large GPU."""

MANY = 2**17
"""Blocks of all rows that make very many tiles of a transform."""

FEW_ROWS, FEW, NARROW = 64, 3 * 2**14, 128
"""Rows, numbers of all of them, and numbers of one that are transformed by short sums, which are cut off less often."""

LARGE = 3 * 2**18
"""Numbers of a layer, in, out and weights, from which halves save more than the two launches that find scales cost."""

AT_ONCE = 256
"""Programs of a gradient in two parts that a large GPU runs at once with three loads in flight."""

BUSY = 96
"""Programs of a product that keep a large GPU busy."""

BUSY_TOGETHER = 64
"""Programs of both gradients that do, in one launch."""

DEEPEST = 128
"""Numbers that a step of a linear layer's product sums."""

SHALLOW = 32
"""Numbers that a step sums where results have all of float32's accuracy: longer sums are cut off more often."""

LEAST_WORK = 2**15
"""Products of a step of a tile that is not made smaller."""

STAGE = 2**16
"""Bytes that one stage of three of a linear layer's product may read ahead."""

STEP_COST = 16
"""What a step of a product takes besides its depth, in numbers of depth."""

LEAST_STEP = 8
"""Numbers of a tap that are worth reading by themselves."""


@dataclass(frozen=True)
class TransformTile:
    """Rows and blocks transformed by one program, and the slices of the basis it takes.

    A ``whole`` tile has all blocks of its rows, and all of their frequencies.
    """

    rows: int
    blocks: int
    depth: int
    columns: int
    warps: int = 4
    stages: int = 3
    whole: bool = False


@dataclass(frozen=True)
class ProductTile:
    """Rows, columns and summed elements of one program's product; ``step`` of them, if any, are one tap's."""

    rows: int
    columns: int
    depth: int
    step: int = 0
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True)
class StepTile:
    """Rows and blocks of one program's step of a recurrence, the power of two that holds a block, and slices of it."""

    rows: int
    blocks: int
    side: int
    depth: int
    warps: int


@cache
def step_tile(block_size: int, rows: int, blocks: int) -> StepTile:
    """As many blocks as lie together, and rows to make a small tile of them: a step is as short as its programs are."""
    side, size = between(16, power(block_size), 256), 16
    while size > 4 and rows * blocks < size * 2 * FEWEST:
        size //= 2
    across = min(power(blocks), size)
    return StepTile(size // across, across, side, min(side, 64), 4 if side <= 64 else 8)


@cache
def transform_tile(
    block_size: int, rows: int, blocks: int, channels_adjacent: bool, back: bool, scaled: bool = False,
    alone: bool = False, itemsizes: tuple[int, int] = (4, 4), exact: bool = False,
) -> TransformTile:  # fmt: skip
    """As many blocks a row as lie together, and rows to make a tile of them; small tiles where there are few of them.

    Transforming ``back`` reads with strides and writes together, and is best left to fewer, larger tiles. So is
    finding a scale in each of very many tiles, where spectra are ``scaled``. Rows ``alone``, which are no pixels, come
    in order: then what counts are bytes of rows and of spectra, ``itemsizes`` a number.

    Results of few or narrow rows are sums of few numbers, which plain torch rounds seldom: there sums of ``exact``
    spectra, which have all of float32's accuracy, are no longer than what tensor cores add up at once.
    """
    size, warps = 128 if back or (scaled and rows * blocks >= MANY) else 64, 4
    if alone and itemsizes == (2, 2):
        size, warps = 128, 2 if back else 8
    elif alone and itemsizes == (4, 4):
        size = 64
    while size > 16 and rows * blocks < size * FEWEST:
        size, warps = size // 2, 4
    most = 32 if channels_adjacent else 4 if back else 8
    across = min(power(blocks), most, size)
    side = between(16, power(block_size), 128)
    whole = across == blocks and side == block_size
    numbers = blocks * block_size
    short = (rows <= FEW_ROWS and rows * numbers <= FEW) or (alone and numbers <= NARROW)
    depth = 16 if exact and short else min(side, 64)
    return TransformTile(size // across, across, depth, side, warps, stages=2, whole=whole)


@cache
def product_tile(
    rows: int, columns: int, summed: int, taps: int = 1, itemsize: int = 4, exact: bool = False
) -> ProductTile:
    """For each frequency's product of ``rows`` by ``columns`` complex numbers, over ``summed`` real ones of a tap.

    An ``exact`` one has all of float32's accuracy.
    """
    depths = [depth for depth in (64, 32, 16) if not exact or depth <= SHALLOW]
    deep = min(depths, key=lambda depth: steps_of(depth, summed, taps) * depth)
    wide = between(8, power(columns), 32)
    step = step_of(deep, summed, taps)
    high = 64 if wide == 32 else 128
    # Copies in flight pass by the cache, in which neighbouring windows find each other's narrow rows.
    stages = 1 if step and itemsize == 2 and wide == 8 else 3
    return ProductTile(between(16, power(rows), high), wide, deep, step, stages=stages)


@cache
def linear_tile(
    rows: int, columns: int, summed: int, matrices: int, itemsize: int, parts: int, enough: int = BUSY,
    room: int = SHARED, exact: bool = False,
) -> ProductTile:  # fmt: skip
    """As `product_tile`, of ``matrices`` products of one tap and of numbers in ``parts``.

    Large and deep tiles, which need many registers but few reads; smaller ones as long as they are not ``enough``, and
    less deep ones where a block has little ``room``.
    """
    wide = between(8, power(columns), 64 if parts * itemsize == 2 else 32)
    high = between(16, power(rows), 128 if wide < 32 or itemsize == 4 else 64)
    step = min(summed, DEEPEST)
    while matrices * -(-rows // high) * -(-columns // wide) < enough and high * wide * step > LEAST_WORK:
        high, wide = (high // 2, wide) if high > 2 * wide else (high, wide // 2)
    most = min(STAGE, room // 3 - 1024) // (parts * itemsize * (high + 2 * wide))
    most = min(most, SHALLOW if exact else DEEPEST)
    depths = [depth for depth in (DEEPEST, 64, 32, 16) if depth <= most] or [16]
    deep = min(depths, key=lambda depth: steps_of(depth, summed, 1) * (depth + STEP_COST))
    return ProductTile(high, wide, deep)


@cache
def weight_tile(p: int, q: int, taps: int, rows: int, itemsize: int, exact: bool = False) -> ProductTile:
    """For each frequency's weight gradient of ``p`` by ``taps`` times ``q`` complex numbers, summed over ``rows``.

    Both its factors are read across what tensor cores sum. For two bytes they can turn them themselves; wider ones
    go through registers, and there a small tile is best.
    """
    high = 64 if itemsize == 2 else 32
    deep = between(16, power(rows), SHALLOW if exact or p > 16 else 64)
    padded = {columns: weight_tiles(columns, q, taps) * columns for columns in (32, 16)}
    wide = 32 if padded[32] <= padded[16] or (taps == 1 and q > 16) else 16
    return ProductTile(between(8, power(p), high), wide, deep, min(wide, power(q)))


def weight_tiles(columns: int, q: int, taps: int) -> int:
    """Tiles of so many columns across a weight gradient: several taps in each, or several of them for a tap."""
    step = min(columns, power(q))
    return -(-taps // (columns // step)) * -(-q // step)


def step_of(side: int, numbers: int, taps: int) -> int:
    """How many of a side are one tap's, where a tap has enough numbers to be told apart from others; else 0."""
    return min(side, power(numbers)) if taps > 1 and numbers > LEAST_STEP // 2 else 0


def steps_of(side: int, numbers: int, taps: int) -> int:
    """Tiles of a side that ``numbers`` of each tap take: several taps in a tile where they fit, one tap in several."""
    step = step_of(side, numbers, taps)
    return -(-taps // (side // step)) * -(-numbers // step) if step else -(-taps * numbers // side)


def expand_tile(rows: int, summed: int) -> ProductTile:
    """For a product with circulant tiles made on the fly: few rows, so narrow tiles to have enough of them."""
    return ProductTile(between(16, power(rows), 64), 16, between(16, power(summed), 64))


def row_splits(programs: int, rows: int, depth: int) -> int:
    """Shares of the summed rows of a weight gradient, given the ``programs`` of one share.

    A program that sums all rows of a convolution would be the last to end by far, so none takes more than 16 steps,
    as long as there are no more than 8192 of them in all.
    """
    steps = -(-rows // depth)
    return max(1, min(-(-steps // 16), 8192 // programs))


def scales_pay(x: int, w: int, y: int) -> bool:
    """Whether finding the scales of so many inputs, weights and outputs costs less than multiplying halves saves.

    Two more launches find them, which is what small layers consist of. Of no numbers there is no scale.
    """
    return min(x, y) > 0 and x + w + y >= LARGE
