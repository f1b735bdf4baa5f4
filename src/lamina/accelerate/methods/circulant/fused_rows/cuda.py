"""Block-circulant linear maps of many rows by CUDA kernels that keep spectra of rows in shared memory.

One kernel transforms rows, multiplies spectra and transforms back; with transposed weights it is the input gradient.
Another transforms rows and output gradients and sums the spectra of the weight gradient. Neither writes the spectrum of
a row to memory. Only the spectra of weights, which are `block_size` times smaller than the matrix, are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.common.tiling import MULTIPROCESSORS
from lamina.accelerate.methods.circulant.basis import basis, slot_count
from lamina.accelerate.runtime.constants import constant
from lamina.accelerate.runtime.nvrtc import DTYPE_CODES, Kernel, Launchable, with_common_header

BLOCK_SIZES = (16, 32, 64, 128)
"""Block sizes whose halves are tiles of tensor cores."""

DTYPES = (torch.bfloat16, torch.float16)

FOLDER = files(__package__)

kernel_class: Any = Kernel
"""Compiles and launches the source; tests replace it by one that runs the same source on the CPU."""


@dataclass(frozen=True)
class RowTile:
    """The tile of a thread block of `fused_rows`.

    ``row_tiles`` times 16 rows; ``chunk`` output blocks are transformed back at a time, and ``splits`` thread blocks
    share the output blocks of their rows. With ``shared_spectra`` the spectra of outputs take the memory of those of
    inputs. ``staged`` and what follows are macros of `rows.cu`.
    """

    num_warps: int
    row_tiles: int
    chunk: int
    blocks_per_sm: int
    splits: int = 1
    shared_spectra: bool = False
    pipeline: int = 1
    item_blocks: int = 4
    staged: bool = False
    weights_ahead: int = 0
    prefetch: bool = False
    rows_ahead: bool = False
    touch: bool = False
    fetched: int = 0


@dataclass(frozen=True)
class WeightTile:
    """The tile of a thread block of the weight gradient.

    ``out_tiles`` times 8 blocks of output gradients, ``in_tiles`` times 4 blocks of inputs, ``row_tiles`` times 16 rows
    at a time. ``ahead`` and ``asynchronous`` are macros of `weight_gradient.cu`.
    """

    num_warps: int
    row_tiles: int
    out_tiles: int
    in_tiles: int
    blocks_per_sm: int
    ahead: bool = False
    item_blocks: int = 4
    asynchronous: int = 0


@dataclass(frozen=True)
class FusedRows:
    """A matmul of rows with a block-circulant matrix: block size, input and output blocks, and dtype of rows."""

    block_size: int
    in_blocks: int
    out_blocks: int
    dtype: torch.dtype

    @property
    def slots(self) -> int:
        """Frequency slots of a block."""
        return slot_count(self.block_size)

    @property
    def table_bytes(self) -> int:
        """Shared memory of the basis for one direction."""
        return 2 * self.slots * self.slots * 2

    def row_bytes(self, tile: RowTile) -> int:
        """Shared memory of a thread block of `fused_rows`."""
        rows = 16 * tile.row_tiles
        spectra = self.slots * (-(-self.in_blocks // 4) * rows + 1)
        products = tile.chunk * (2 * (self.slots // 8) * rows + 1)
        staged = rows * (tile.chunk * self.block_size + 32) // 8 if tile.staged else 0
        units = max(spectra, products + staged) if tile.shared_spectra else spectra + products + staged
        units += tile.num_warps * min(tile.weights_ahead, -(-self.in_blocks // 4)) * 64
        units += tile.fetched * tile.item_blocks * 4 * self.slots
        return (2 if tile.shared_spectra or tile.fetched else 1) * self.table_bytes + 16 * units

    def weight_bytes(self, tile: WeightTile) -> int:
        """Shared memory of a thread block of the weight gradient."""
        quads = 2 * tile.out_tiles + tile.in_tiles
        spectra = self.slots * (quads * 16 * tile.row_tiles + 1)
        fetched = quads * tile.row_tiles * 16 * self.slots if tile.asynchronous else 0
        return self.table_bytes + 16 * (2 * spectra + fetched if tile.asynchronous else spectra)

    def weight_tiles(self, tile: WeightTile) -> int:
        """Thread blocks that share the blocks of weights of a range of rows."""
        return -(-self.out_blocks // (8 * tile.out_tiles)) * -(-self.in_blocks // (4 * tile.in_tiles))

    def macros(self, num_warps: int, item_blocks: int = 4) -> dict[str, int]:
        """Macros that all sources share."""
        return {
            "TYPE": DTYPE_CODES[self.dtype], "BLOCK_SIZE": self.block_size, "WARPS": num_warps,
            "ITEM_BLOCKS": item_blocks,
            "IN_BLOCKS": self.in_blocks, "OUT_BLOCKS": self.out_blocks,
        }  # fmt: skip

    def row_macros(self, tile: RowTile, bias: bool) -> dict[str, int]:
        """Macros of `fused_rows`."""
        return self.macros(tile.num_warps, tile.item_blocks) | {
            "ROW_TILES": tile.row_tiles, "CHUNK": tile.chunk, "BIAS": int(bias),
            "SHARED_SPECTRA": int(tile.shared_spectra), "BLOCKS_PER_SM": tile.blocks_per_sm, "PIPELINE": tile.pipeline,
            "STAGED": int(tile.staged), "WEIGHTS_AHEAD": tile.weights_ahead,
            "PREFETCH": int(tile.prefetch), "ROWS_AHEAD": int(tile.rows_ahead), "TOUCH": int(tile.touch),
            "FETCHED": tile.fetched,
        }  # fmt: skip

    def weight_macros(self, tile: WeightTile) -> dict[str, int]:
        """Macros of the weight gradient."""
        return self.macros(tile.num_warps, tile.item_blocks) | {
            "ROW_TILES": tile.row_tiles, "OUT_TILES": tile.out_tiles, "IN_TILES": tile.in_tiles,
            "BLOCKS_PER_SM": tile.blocks_per_sm, "AHEAD": int(tile.ahead), "ASYNC": tile.asynchronous,
        }  # fmt: skip


def source(name: str) -> str:
    """The CUDA source of a kernel."""
    return with_common_header(FOLDER / "transforms.cu", FOLDER / f"{name}.cu")


@lru_cache(maxsize=1024)
def _kernel(kernel: Any, name: str, file: str, macros: tuple[tuple[str, int], ...]) -> Launchable:
    compiled: Launchable = kernel(source(file), name, macros=dict(macros), pdl=True)
    return compiled


def _compiled(name: str, file: str, macros: Mapping[str, int]) -> Launchable:
    return _kernel(kernel_class, name, file, tuple(macros.items()))


@constant
def tables(block_size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The basis as operands of tensor cores, as `transforms.cu` reads it: for the transform, then for its inverse.

    Kernels may read it before the preceding kernel has finished, so it is made on the host.
    """
    k, slots = block_size, slot_count(block_size)
    vector = min(slots // 4, 8)
    columns, fragment = slots // 8, max(1, slots // 8)
    lane, n, word = torch.arange(32), torch.arange(columns), torch.arange(fragment)
    pair = torch.arange(2)
    group, thread = (lane // 4).view(1, -1, 1, 1), (lane % 4).view(1, -1, 1, 1)
    n, word, pair = n.view(-1, 1, 1, 1), word.view(1, 1, -1, 1), pair.view(1, 1, 1, -1)

    def time(tile: Tensor, thread: Tensor, pair: Tensor) -> Tensor:
        return 4 * vector * (tile // (vector // 2)) + vector * thread + 2 * (tile % (vector // 2)) + pair

    matrix = half_sample_basis(k, torch.float64)  # (2, slots, slots)
    direct = matrix[:, (8 * n + group).expand(-1, 32, fragment, 2), time(word, thread, pair).expand(columns, 32, -1, 2)]
    slot = 8 * word + 2 * thread + pair
    inverse = matrix[:, slot.expand(columns, 32, -1, 2), time(n, group // 2, group % 2).expand(-1, 32, fragment, 2)]
    piece = min(fragment, 4)
    both = torch.stack([direct, inverse]).to(dtype)  # (direction, part, columns, lanes, fragment, pair)
    both = torch.unflatten(both, 4, (-1, piece)).permute(0, 2, 1, 4, 3, 5, 6)
    return both.contiguous().view(torch.int32).flatten().to(device)


def half_sample_basis(block_size: int, dtype: torch.dtype) -> Tensor:
    """The orthonormal basis with samples at ``t + 1/2``, for ``t < block_size / 2``: ``(2, slots, slots)``.

    The cosines of all slots are even about the middle of a block, and the sines odd, among them the highest frequency,
    which is the imaginary part of slot 0.
    """
    k, slots = block_size, slot_count(block_size)
    time, slot = torch.arange(slots, dtype=torch.float64) + 0.5, torch.arange(slots, dtype=torch.float64)[:, None]
    angle = 2 * torch.pi / k * slot * time
    real, imaginary = angle.cos(), -angle.sin()
    imaginary[0] = 1 - 2 * (torch.arange(slots) % 2).double()
    scale = ((1 + (slot > 0).double()) / k).sqrt()
    return torch.stack([real * scale, imaginary * scale]).to(dtype)


@constant
def eigenbasis(block_size: int, device: torch.device) -> Tensor:
    """The transform of weights, ``(block_size, slots, 2)``, in float32."""
    matrix = basis(block_size, eigenvalues=True, dtype=torch.float32).view(2, -1, block_size)
    return matrix.permute(2, 1, 0).contiguous().to(device)


@constant
def inverse_eigenbasis(block_size: int, device: torch.device) -> Tensor:
    """The same as ``(2, slots, block_size)``, as the inverse transform of gradients reads it."""
    return basis(block_size, eigenvalues=True, dtype=torch.float32).view(2, -1, block_size).contiguous().to(device)


def weight_spectra(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Spectra of ``weight (p, q, k)`` as operands of tensor cores: for the product, and for the input gradient."""
    p, q, k = weight.shape
    slots = slot_count(k)

    def empty(outputs: int, inputs: int) -> Tensor:
        shape = -(-outputs // 8), slots // 8, -(-inputs // 4), 2, 32, 4
        return weight.new_empty(shape, dtype=torch.int32)

    forward, backward = empty(p, q), empty(q, p)
    warps = 1 if kernel_class is not Kernel else 4
    macros = FusedRows(k, q, p, dtype).macros(warps) | {"WEIGHT_TYPE": DTYPE_CODES[weight.dtype]}
    kernel = _compiled("weight_spectra", "weight_spectra", macros)
    operands: list[Tensor] = [weight, eigenbasis(k, weight.device), forward, backward]
    kernel.launch((-(-p // 8), 2 * -(-q // 8), slots // 4), (32 * warps,), operands)
    return forward, backward


def units(words: Tensor) -> Tensor:
    """Words as units of 16 bytes, as kernels take them."""
    return words.view(torch.complex128)


def run_rows(x: Tensor, spectra: Tensor, bias: Tensor | None, y: Tensor, block_size: int, tile: RowTile) -> None:
    """Write ``x (rows, q k)`` times the weights of ``spectra``, plus a float32 ``bias (p k)``, to ``y (rows, p k)``."""
    rows, sizes = x.shape[0], (x.shape[1] // block_size, y.shape[1] // block_size)
    problem = FusedRows(block_size, *sizes, x.dtype)
    chunks = -(-problem.out_blocks // (tile.chunk * tile.splits))
    kernel = _compiled("fused_rows", "rows", problem.row_macros(tile, bias is not None))
    table = tables(block_size, x.dtype, x.device)
    row_blocks = -(-rows // (16 * tile.row_tiles))
    if tile.fetched:
        row_blocks = min(row_blocks, MULTIPROCESSORS * tile.blocks_per_sm)
    grid = row_blocks, -(-problem.out_blocks // (tile.chunk * chunks))
    unused = eigenbasis(block_size, x.device)
    operands = [x, units(spectra), table, unused if bias is None else bias, y]
    kernel.launch(grid, (32 * tile.num_warps,), [*operands, rows, chunks], problem.row_bytes(tile))


def run_weight_gradient(dy: Tensor, x: Tensor, dw: Tensor, tile: WeightTile, splits: int | None = None) -> None:
    """Write the weight gradient of ``dy (rows, p k)`` and ``x (rows, q k)`` to ``dw (p, q, k)``.

    Output blocks of ``tile`` are those of the wider of the two.
    """
    (p, q, k), rows = dw.shape, x.shape[0]
    transposed = p < q  # the wider rows are read once, the others again for each group of them
    if transposed:
        dy, x, p, q = x, dy, q, p
    problem = FusedRows(k, q, p, x.dtype)
    tiles = problem.weight_tiles(tile)
    splits = splits or max(1, MULTIPROCESSORS * tile.blocks_per_sm // tiles)
    step = 16 * tile.row_tiles
    rows_per_block = max(1, -(-rows // (splits * step))) * step
    splits = max(1, -(-rows // rows_per_block))
    partials = x.new_empty(splits, tiles, problem.slots * tile.out_tiles * tile.in_tiles * 64, dtype=torch.float32)
    kernel = _compiled("fused_weight_gradient", "weight_gradient", problem.weight_macros(tile))
    operands = [dy, x, tables(k, x.dtype, x.device), partials]
    kernel.launch(
        (splits, tiles), (32 * tile.num_warps,), [*operands, rows, rows_per_block], problem.weight_bytes(tile)
    )
    warps = 1 if kernel_class is not Kernel else min(2 * problem.slots, 32)
    macros = problem.macros(warps) | {
        "WEIGHT_TYPE": DTYPE_CODES[dw.dtype], "OUT_TILES": tile.out_tiles, "IN_TILES": tile.in_tiles,
        "SWAPPED": int(transposed),
    }  # fmt: skip
    reduce = _compiled("reduce_weight_gradient", "weight_reduction", macros)
    blocks = tiles * tile.out_tiles * tile.in_tiles * 8
    reduce.launch((blocks,), (32 * warps,), [partials, inverse_eigenbasis(k, x.device), dw, splits, tiles])
