"""Tile shapes and launch parameters of the circulant kernels, as pure functions of the problem sizes.

Tensor cores need every side of a tile to be a power of two and at least 16. The columns of a spectral matmul hold real
and imaginary parts side by side, and so do the rows of a weight gradient: for these, 8 are enough.

Results are cached: a layer requests the same tiles in every step, and launch overhead matters for short kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from lamina.accelerate.common.tiling import SHARED_MEMORY, clamp, next_power_of_2

MIN_PROGRAMS = 128
"""Programs of a transform, if there is work for as many: about one for each multiprocessor of a large GPU."""

MANY_BLOCKS = 2**17
"""Circulant blocks of all rows from which a transform has very many tiles."""

SMALL_ROWS, SMALL_NUMEL, NARROW_NUMEL = 64, 3 * 2**14, 128
"""Rows, elements of all rows, and elements of a row up to which transforms use short sums, truncated less often."""

MIN_SCALED_NUMEL = 3 * 2**18
"""Inputs, outputs and weights of a layer from which scaled fp16 saves more than the two launches that find scales."""

CONCURRENT_PROGRAMS = 256
"""Programs of a two-term backward pass that a large GPU runs concurrently with three pipeline stages."""

MIN_MATMUL_PROGRAMS = 96
"""Programs of a matmul that occupy a large GPU."""

MIN_BACKWARD_PROGRAMS = 64
"""Programs of both gradients in one launch that occupy a large GPU."""

MAX_BLOCK_K = 128
"""Largest ``block_k`` of a linear layer's matmul."""

MAX_EXACT_BLOCK_K = 32
"""Largest ``block_k`` where results have full float32 accuracy: tensor cores truncate longer sums more often."""

MIN_TILE_WORK = 2**15
"""Products per iteration below which a tile is not made smaller."""

MAX_STAGE_BYTES = 2**16
"""Bytes of one of three pipeline stages of a linear layer's matmul."""

ITERATION_OVERHEAD = 16
"""Fixed cost of an iteration over ``k``, in units of ``block_k``."""

MIN_TAP_WIDTH = 8
"""Elements of a tap from which its loads are grouped per tap."""


@dataclass(frozen=True)
class TransformTile:
    """The tile of a transform: rows and circulant blocks of a program, and the basis slices that it multiplies.

    A ``full_rows`` tile holds all blocks of its rows, and all of their frequencies.
    """

    rows: int
    blocks: int
    block_k: int
    block_n: int
    num_warps: int = 4
    num_stages: int = 3
    full_rows: bool = False


@dataclass(frozen=True)
class MatmulTile:
    """The tile of a spectral matmul; with a ``tap_width``, that many of its ``k`` elements belong to one tap."""

    block_m: int
    block_n: int
    block_k: int
    tap_width: int = 0
    num_warps: int = 4
    num_stages: int = 3


@dataclass(frozen=True)
class LSTMStepTile:
    """The tile of an LSTM step: rows, blocks, the block size padded to a power of two, and the slices of a block."""

    rows: int
    blocks: int
    padded_k: int
    block_k: int
    num_warps: int


@cache
def lstm_step_tile(block_size: int, rows: int, blocks: int) -> LSTMStepTile:
    """Contiguous blocks first, then rows, in small tiles: a time step is as short as its programs are."""
    padded_k, size = clamp(16, next_power_of_2(block_size), 256), 16
    while size > 4 and rows * blocks < size * 2 * MIN_PROGRAMS:
        size //= 2
    tile_blocks = min(next_power_of_2(blocks), size)
    return LSTMStepTile(size // tile_blocks, tile_blocks, padded_k, min(padded_k, 64), 4 if padded_k <= 64 else 8)


@cache
def transform_tile(
    block_size: int, rows: int, blocks: int, channels_adjacent: bool, inverse: bool, scaled: bool = False,
    features: bool = False, itemsizes: tuple[int, int] = (4, 4), exact: bool = False,
) -> TransformTile:  # fmt: skip
    """Contiguous blocks of a row first, then rows; small tiles if there are few of them.

    An ``inverse`` transform has strided reads and contiguous writes, and runs best in fewer, larger tiles. So does a
    transform with very many tiles that each load a scale (``scaled``). The rows of a linear layer (``features``, no
    pixels) are contiguous: there the tile depends on the bytes per element of rows and of spectra, ``itemsizes``.

    Results of few or narrow rows are sums of few elements, in which plain PyTorch rounds rarely. For these, sums of
    ``exact`` spectra, which have full float32 accuracy, are no longer than one tensor-core instruction adds up.
    """
    size, num_warps = 128 if inverse or (scaled and rows * blocks >= MANY_BLOCKS) else 64, 4
    if features and itemsizes == (2, 2):
        size, num_warps = 128, 8
        if inverse:
            num_warps = 2 if block_size <= 64 else 4  # the sums of larger blocks do not fit the registers of two
    elif features and itemsizes == (4, 4):
        size = 64
    while size > 16 and rows * blocks < size * MIN_PROGRAMS:
        size, num_warps = size // 2, 4
    most = 32 if channels_adjacent else 4 if inverse else 8
    tile_blocks = min(next_power_of_2(blocks), most, size)
    block_n = clamp(16, next_power_of_2(block_size), 128)
    full_rows = tile_blocks == blocks and block_n == block_size
    row_numel = blocks * block_size
    short = (rows <= SMALL_ROWS and rows * row_numel <= SMALL_NUMEL) or (features and row_numel <= NARROW_NUMEL)
    block_k = 16 if exact and short else min(block_n, 64)
    return TransformTile(
        size // tile_blocks, tile_blocks, block_k, block_n, num_warps, num_stages=2, full_rows=full_rows
    )


@cache
def conv_tile(
    rows: int, columns: int, summed: int, taps: int = 1, itemsize: int = 4, exact: bool = False
) -> MatmulTile:
    """The tile of a convolution: ``rows`` by ``columns`` complex outputs per frequency, ``summed`` reals per tap.

    An ``exact`` matmul has full float32 accuracy.
    """
    candidates = [block_k for block_k in (64, 32, 16) if not exact or block_k <= MAX_EXACT_BLOCK_K]
    block_k = min(candidates, key=lambda block_k: num_iterations(block_k, summed, taps) * block_k)
    block_n = clamp(8, next_power_of_2(columns), 32)
    width = tap_width(block_k, summed, taps)
    most = 64 if block_n == 32 else 128
    # Asynchronous copies bypass the L1 cache, in which neighboring windows would hit each other's narrow rows.
    num_stages = 1 if width and itemsize == 2 and block_n == 8 else 3
    return MatmulTile(clamp(16, next_power_of_2(rows), most), block_n, block_k, width, num_stages=num_stages)


@cache
def linear_tile(
    rows: int, columns: int, summed: int, matrices: int, itemsize: int, terms: int,
    min_programs: int = MIN_MATMUL_PROGRAMS, shared_memory: int = SHARED_MEMORY, exact: bool = False,
) -> MatmulTile:  # fmt: skip
    """As `conv_tile`, for ``matrices`` matmuls of one tap each, with operands of ``terms`` terms.

    Large tiles with a large ``block_k`` need many registers but few reads. They shrink until there are
    ``min_programs`` of them, and ``block_k`` shrinks where a thread block has little ``shared_memory``.
    """
    block_n = clamp(8, next_power_of_2(columns), 64 if terms * itemsize == 2 else 32)
    block_m = clamp(16, next_power_of_2(rows), 128 if block_n < 32 or itemsize == 4 else 64)
    k = min(summed, MAX_BLOCK_K)
    while (
        matrices * -(-rows // block_m) * -(-columns // block_n) < min_programs and block_m * block_n * k > MIN_TILE_WORK
    ):
        block_m, block_n = (block_m // 2, block_n) if block_m > 2 * block_n else (block_m, block_n // 2)
    most = min(MAX_STAGE_BYTES, shared_memory // 3 - 1024) // (terms * itemsize * (block_m + 2 * block_n))
    most = min(most, MAX_EXACT_BLOCK_K if exact else MAX_BLOCK_K)
    candidates = [block_k for block_k in (MAX_BLOCK_K, 64, 32, 16) if block_k <= most] or [16]
    block_k = min(candidates, key=lambda block_k: num_iterations(block_k, summed, 1) * (block_k + ITERATION_OVERHEAD))
    return MatmulTile(block_m, block_n, block_k)


@cache
def backward_weight_tile(p: int, q: int, taps: int, rows: int, itemsize: int, exact: bool = False) -> MatmulTile:
    """The tile of a weight gradient: ``p`` by ``taps * q`` complex elements per frequency, summed over ``rows``.

    Both operands are contiguous across the summed dimension. Tensor cores transpose 2-byte operands themselves; wider
    ones are transposed through registers, where a small tile is best.
    """
    most = 64 if itemsize == 2 else 32
    block_k = clamp(16, next_power_of_2(rows), MAX_EXACT_BLOCK_K if exact or p > 16 else 64)
    padded = {columns: num_weight_tiles(columns, q, taps) * columns for columns in (32, 16)}
    block_n = 32 if padded[32] <= padded[16] or (taps == 1 and q > 16) else 16
    return MatmulTile(clamp(8, next_power_of_2(p), most), block_n, block_k, min(block_n, next_power_of_2(q)))


def num_weight_tiles(block_n: int, q: int, taps: int) -> int:
    """Tiles across the columns of a weight gradient: several taps per tile, or several tiles per tap."""
    width = min(block_n, next_power_of_2(q))
    return -(-taps // (block_n // width)) * -(-q // width)


def tap_width(side: int, summed: int, taps: int) -> int:
    """Elements of one tap in a side of a tile, if a tap has enough elements to be loaded separately; else 0."""
    return min(side, next_power_of_2(summed)) if taps > 1 and summed > MIN_TAP_WIDTH // 2 else 0


def num_iterations(side: int, summed: int, taps: int) -> int:
    """Tiles over ``summed`` elements of each tap: several taps per tile if they fit, else several tiles per tap."""
    width = tap_width(side, summed, taps)
    return -(-taps // (side // width)) * -(-summed // width) if width else -(-taps * summed // side)


def materialized_linear_tile(rows: int, summed: int) -> MatmulTile:
    """The tile of a matmul with materialized circulant tiles: ``block_n`` is small, since rows are few."""
    return MatmulTile(clamp(16, next_power_of_2(rows), 64), 16, clamp(16, next_power_of_2(summed), 64))


def split_k_for(programs: int, rows: int, block_k: int) -> int:
    """``split_k`` of a weight gradient over ``rows``, given the ``programs`` of one split.

    A program that sums all rows of a convolution would finish last by far, so none has more than 16 iterations, as long
    as there are at most 8192 programs in total.
    """
    iterations = -(-rows // block_k)
    return max(1, min(-(-iterations // 16), 8192 // programs))


def scaled_fp16_pays(x: int, w: int, y: int) -> bool:
    """Whether scaled fp16 saves more matmul time than finding the scales costs, by the number of elements.

    Scales need two more launches, which dominate small layers. Empty tensors have no scale.
    """
    return min(x, y) > 0 and x + w + y >= MIN_SCALED_NUMEL
