"""Block-circulant linear maps of many rows by CUDA kernels that keep spectra of rows in shared memory.

One kernel transforms rows, multiplies spectra and transforms back; with transposed weights it is the input gradient.
Another transforms rows and output gradients and sums the spectra of the weight gradient. Neither writes the spectrum of
a row to memory. Only the spectra of weights, which are `block_size` times smaller than the matrix, are written.

Float32 rows are float16 inside, with the precision of TF32, each under its own power of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.resources import files
from math import prod
from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.common.tiling import MULTIPROCESSORS, SHARED_MEMORY
from lamina.accelerate.methods.circulant.activations import code
from lamina.accelerate.methods.circulant.basis import basis, slot_count
from lamina.accelerate.runtime.constants import constant
from lamina.accelerate.runtime.nvrtc import DTYPE_CODES, Arguments, Kernel, Launchable, with_common_header
from lamina.errors import LaminaError, MissingError, UnsupportedError, UsageError

BLOCK_SIZES = (16, 32, 64, 128)
"""Block sizes whose halves are tiles of tensor cores."""

DTYPES = (torch.bfloat16, torch.float16, torch.float32)

FEW_STEPS = 4
"""Steps of 16 rows of a thread block of the weight gradient, up to which its partials are most of its work."""

MANY_SUMS, FEW_COLUMNS = 512, 1024
"""More rows of column sums, of at most so many columns, take more threads for each column."""

MAX_AMAX_PARTIALS = 128
"""Thread blocks that compute the amax of float32 weights."""

FOLDER = files(__package__)

kernel_class: Any = Kernel
"""Compiles and launches the source; tests replace it by one that runs the same source on the CPU."""


@dataclass(frozen=True)
class RowTile:
    """The tile of a thread block of `fused_rows`, which owns 16 rows.

    ``chunk`` output blocks are transformed back at a time, and ``splits`` thread blocks share the output blocks of
    their rows. A warp transforms ``item_blocks`` blocks at a time. With ``shared_spectra`` the spectra of outputs take
    the memory of those of inputs. ``staged`` and what follows are macros of `rows.cu`.
    """

    num_warps: int
    chunk: int
    blocks_per_sm: int
    splits: int = 1
    item_blocks: int = 4
    shared_spectra: bool = False
    staged: bool = False
    prefetch: bool = False
    rows_ahead: bool = False


@dataclass(frozen=True)
class WeightTile:
    """The tile of a thread block of the weight gradient, which reads 16 rows at a time.

    ``out_tiles`` times 8 blocks of output gradients, and ``in_tiles`` times 4 blocks of inputs. A warp transforms
    ``item_blocks`` blocks at a time.
    """

    num_warps: int
    out_tiles: int
    in_tiles: int
    item_blocks: int = 4


@dataclass(frozen=True)
class RowSteps:
    """What `fused_rows` does besides the product; each is a macro of `rows.cu`."""

    bias: bool = False
    relu: bool = False
    input_activation: int = 0
    gate_activation: int = 0
    overlapped: bool = False
    summed: bool = False


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

    @property
    def scaled(self) -> bool:
        """Whether rows are float32, and float16 under scales inside."""
        return self.dtype == torch.float32

    def row_bytes(self, tile: RowTile) -> int:
        """Shared memory of a thread block of `fused_rows`."""
        in_quads = -(-self.in_blocks // 4)
        spectra = self.slots * (in_quads * 16 + 1)
        products = tile.chunk * (4 * self.slots + 1)
        staged = self.dtype.itemsize * (tile.chunk * self.block_size + 32) if tile.staged else 0
        outputs = products + staged
        units = max(spectra, outputs) if tile.shared_spectra else spectra + outputs
        units += 4 * (1 + in_quads * 4 // tile.item_blocks) if self.scaled else 0  # exponents of rows and of items
        return (2 if tile.shared_spectra else 1) * self.table_bytes + 16 * units

    def weight_bytes(self, tile: WeightTile) -> int:
        """Shared memory of a thread block of the weight gradient: spectra, if not scaled twice, and the next rows."""
        quads = 2 * tile.out_tiles + tile.in_tiles
        spectra, fetched = self.slots * (quads * 16 + 1), quads * 8 * self.slots * self.dtype.itemsize
        exponents = 16 if self.scaled else 0
        return self.table_bytes + 16 * ((1 if self.scaled else 2) * spectra + fetched + exponents)

    def weight_tiles(self, tile: WeightTile) -> int:
        """Thread blocks that share the blocks of weights of a range of rows."""
        return -(-self.out_blocks // (8 * tile.out_tiles)) * -(-self.in_blocks // (4 * tile.in_tiles))

    def macros(self, num_warps: int, item_blocks: int = 4) -> dict[str, int]:
        """Macros that all sources share."""
        return {
            "TYPE": DTYPE_CODES[torch.float16 if self.scaled else self.dtype], "SCALED": int(self.scaled),
            "BLOCK_SIZE": self.block_size, "WARPS": num_warps, "ITEM_BLOCKS": item_blocks,
            "IN_BLOCKS": self.in_blocks, "OUT_BLOCKS": self.out_blocks,
        }  # fmt: skip

    def row_macros(self, tile: RowTile, steps: RowSteps, signs: Tensor | None, flip_outputs: bool) -> dict[str, int]:
        """Macros of `fused_rows`."""
        return self.macros(tile.num_warps, tile.item_blocks) | sign_macros(signs, flip_outputs) | {
            "CHUNK": tile.chunk, "SHARED_SPECTRA": int(tile.shared_spectra), "BLOCKS_PER_SM": tile.blocks_per_sm,
            "STAGED": int(tile.staged), "PREFETCH": int(tile.prefetch), "ROWS_AHEAD": int(tile.rows_ahead),
            **{name.upper(): int(step) for name, step in asdict(steps).items()},
        }  # fmt: skip

    def weight_macros(
        self, tile: WeightTile, signs: Tensor | None, swapped: bool, activation: int = 0, overlapped: bool = False
    ) -> dict[str, int]:
        """Macros of the weight gradient; ``swapped`` if inputs take the place of output gradients."""
        return self.macros(tile.num_warps, tile.item_blocks) | sign_macros(signs, swapped) | {
            "OUT_ACTIVATION": swapped * activation, "IN_ACTIVATION": (not swapped) * activation,
            "OUT_TILES": tile.out_tiles, "IN_TILES": tile.in_tiles, "BLOCKS_PER_SM": 1, "OVERLAPPED": int(overlapped),
        }  # fmt: skip

    def fits(self, tile: RowTile) -> bool:
        """Whether as many thread blocks as the tile asks for fit a multiprocessor."""
        return self.row_bytes(tile) <= min(SHARED_MEMORY, (SHARED_MEMORY + 1024) // tile.blocks_per_sm - 1024)


def sign_macros(signs: Tensor | None, flip_outputs: bool) -> dict[str, int]:
    """Macros of sign flips, of rows of inputs or of outputs; without signs, kernels have no code for them."""
    if signs is None:
        return {"SIGN_TYPE": DTYPE_CODES[torch.float32], "FLIP_IN": 0, "FLIP_OUT": 0}
    return {"SIGN_TYPE": DTYPE_CODES[signs.dtype], "FLIP_IN": int(not flip_outputs), "FLIP_OUT": int(flip_outputs)}


def row_tile(problem: FusedRows, rows: int) -> RowTile | None:
    """The tile of `fused_rows`, as measured on an H200; None if spectra of rows do not fit shared memory.

    Outputs of narrow rows leave in the background. Two thread blocks of 8 warps on a multiprocessor are faster where
    all run at once, three of 4 warps where they do not.
    """
    if problem.scaled:
        return _scaled_row_tile(problem, rows)
    k, thread_blocks = problem.block_size, -(-rows // 16)
    chunk = max(8, 1024 // k)
    if k == 128:  # 16 rows of 4 blocks do not fit the registers, nor staged outputs the shared memory
        candidates = [RowTile(8, chunk, 2, item_blocks=2)]
    else:
        whole = -(-problem.out_blocks // 8) * 8
        one_product = whole // 8 * (problem.slots // 8) <= 8
        splits = min(2, -(-problem.out_blocks // chunk)) if thread_blocks <= MULTIPROCESSORS else 1
        candidates = [RowTile(8, chunk, 2, splits, staged=True)]
        if thread_blocks > 2 * MULTIPROCESSORS:
            candidates.insert(0, RowTile(4, max(8, chunk // 2), 3, staged=True, prefetch=True))
        if k == 32 and one_product:
            candidates.append(RowTile(8, whole, 2, item_blocks=2, shared_spectra=True, rows_ahead=True))
        if problem.in_blocks * k <= 3072:
            candidates.append(RowTile(16, chunk, 1, staged=True, prefetch=True))
    candidates.append(RowTile(8, chunk, 1, item_blocks=2, prefetch=True, rows_ahead=True))
    return next((tile for tile in candidates if problem.fits(tile)), None)


def fits_some_tile(block_size: int, in_blocks: int, out_blocks: int, dtype: torch.dtype) -> bool:
    """Whether the spectra of rows of ``in_blocks`` fit shared memory, however many rows there are."""
    return row_tile(FusedRows(block_size, in_blocks, out_blocks, dtype), 1) is not None


def _scaled_row_tile(problem: FusedRows, rows: int) -> RowTile | None:
    """The tile of `fused_rows` for float32 rows, by registers and bytes; `benchmarks.ladder.rows_tf32` times others.

    Two blocks of 16 rows fill the registers of four in 16 bits. Staged outputs would take the shared memory of a second
    thread block. Wide rows have 16 warps in place of 8 that read ahead: as many bytes are on their way.
    """
    k, thread_blocks = problem.block_size, -(-rows // 16)
    chunk = max(8, 1024 // k)
    if k == 128:
        candidates = [RowTile(4, chunk, 2, item_blocks=2), RowTile(8, chunk, 1, item_blocks=2, prefetch=True)]
    else:
        whole = -(-problem.out_blocks // 8) * 8
        splits = min(2, -(-problem.out_blocks // chunk)) if thread_blocks <= MULTIPROCESSORS else 1
        candidates = [RowTile(8, chunk, 2, splits, item_blocks=2)]
        if thread_blocks > 2 * MULTIPROCESSORS:
            candidates.insert(0, RowTile(4, max(8, chunk // 2), 3, item_blocks=2, prefetch=True))
        if k == 32 and whole // 8 * (problem.slots // 8) <= 8:
            candidates.append(RowTile(8, whole, 2, item_blocks=2, shared_spectra=True))
        candidates.append(RowTile(16, chunk, 1, item_blocks=2, prefetch=True))
    return next((tile for tile in candidates if problem.fits(tile)), None)


def weight_tile(problem: FusedRows, rows: int, activation: int = 0) -> WeightTile:
    """The tile of the weight gradient, as measured on an H200 and an H100; output blocks are of the wider rows.

    Sixteen warps transform half as many blocks each where eight warps would not all have four. Of few float32 rows a
    thread block takes half as many output blocks and twice as many rows: half as many partials are left to add.
    Behind GELU each of 8 warps transforms as many blocks of inputs as of output gradients.
    """
    k, in_quads = problem.block_size, -(-problem.in_blocks // 4)
    out_tiles, most = (1, 2) if k == 128 else (min(2, -(-problem.out_blocks // 8)), 4)
    in_tiles = -(-in_quads // -(-in_quads // most))
    if problem.scaled:  # 16 warps where the registers of a thread hold its sums beside folded rows
        steps = rows * problem.weight_tiles(WeightTile(8, out_tiles, in_tiles)) / (16 * MULTIPROCESSORS)
        if k == 64 and in_tiles == 4 and steps <= FEW_STEPS:
            out_tiles = 1
        fit = k in (32, 64) and problem.slots // 16 * out_tiles * in_tiles * 4 < 64
        return WeightTile(16 if fit else 8, out_tiles, in_tiles, item_blocks=2)
    if 2 * out_tiles + in_tiles == 8:
        return WeightTile(8, out_tiles, in_tiles, item_blocks=2 if activation > code("relu") else 4)
    return WeightTile(16 if k in (32, 64) else 8, out_tiles, in_tiles, item_blocks=2)


def source(name: str) -> str:
    """The CUDA source of a kernel."""
    parts = ("transforms", "activations", "scaling", *(("column_sums",) if name == "rows" else ()), name)
    return with_common_header(*(FOLDER / f"{each}.cu" for each in parts))


@lru_cache(maxsize=1024)
def _kernel(kernel: Any, name: str, file: str, macros: tuple[tuple[str, int], ...]) -> Launchable:
    compiled: Launchable = kernel(source(file), name, macros=dict(macros), pdl=True)
    return compiled


def _launch(
    name: str, file: str, macros: Mapping[str, int], grid: tuple[int, ...], args: Arguments, shared: int = 0
) -> None:
    """Launch a kernel, compiled for its macros.

    Raises:
        MissingError: there is no GPU or no NVRTC.
        UnsupportedError: the kernel does not compile for the device, or the device refuses its launch.
    """
    try:
        _kernel(kernel_class, name, file, tuple(macros.items())).launch(grid, (32 * macros["WARPS"],), args, shared)
    except (MissingError, UsageError):
        raise
    except LaminaError as error:  # other implementations run where this one does not
        raise UnsupportedError(f"fused_rows: {error}") from error


@constant
def tables(block_size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The basis as operands of tensor cores, as `transforms.cu` reads it: for the transform, then for its inverse.

    Kernels may read it before the preceding kernel has finished, so it is made on the host.
    """
    k, slots = block_size, slot_count(block_size)
    vector = min(slots // 4, 16 // dtype.itemsize)
    dtype = torch.float16 if dtype == torch.float32 else dtype
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


def spectra_like(weight: Tensor, outputs: int, inputs: int, dtype: torch.dtype) -> Tensor:
    """Uninitialized spectra of weights from ``inputs`` to ``outputs`` blocks, as operands of tensor cores.

    For float32 rows, a vector that ends with a unit for the exponent of the weights.
    """
    shape = -(-outputs // 8), slot_count(weight.shape[-1]) // 8, -(-inputs // 4), 2, 32, 4
    return weight.new_empty((prod(shape) + 4,) if dtype == torch.float32 else shape, dtype=torch.int32)


def weight_spectra(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Spectra of ``weight (p, q, k)`` as operands of tensor cores: for the product, and for the input gradient."""
    p, q, k = weight.shape
    slots = slot_count(k)
    forward, backward = spectra_like(weight, p, q, dtype), spectra_like(weight, q, p, dtype)
    warps = 1 if kernel_class is not Kernel else 4
    problem = FusedRows(k, q, p, dtype)
    macros = problem.macros(warps) | {"WEIGHT_TYPE": DTYPE_CODES[weight.dtype]}
    operands: list[Tensor | int] = [weight, eigenbasis(k, weight.device), forward, backward]
    if problem.scaled:
        partials = min(MAX_AMAX_PARTIALS, -(-weight.numel() // 512))
        operands += [weight.new_empty(partials, dtype=torch.float32), partials]
        of_any = macros | FusedRows(BLOCK_SIZES[0], 1, 1, dtype).macros(warps)  # one binary for all layers
        _launch("weight_amax", "weight_amax", of_any, (partials,), [weight, operands[-2], weight.numel()])
    grid = -(-p // 8), 2 * -(-q // 8), slots // 4
    _launch("weight_spectra", "weight_spectra", macros, grid, operands)
    return forward, backward


def units(words: Tensor) -> Tensor:
    """Words as units of 16 bytes, as kernels take them."""
    return words.view(torch.complex128)


def run_rows(
    x: Tensor, spectra: Tensor, bias: Tensor | None, y: Tensor, block_size: int, tile: RowTile | None = None,
    signs: Tensor | None = None, flip_outputs: bool = False, relu: bool = False, activation: int = 0,
    gate: Tensor | None = None, overlapped: bool = False, column_sums: Tensor | None = None,
) -> None:  # fmt: skip
    """Write ``x (rows, q k)`` times the weights of ``spectra``, plus a float32 ``bias (p k)``, to ``y (rows, p k)``.

    With ``relu``, ReLU follows the bias. ``activation`` is the code of what ``x`` passes as it is read. With a
    ``gate``, rows like ``y``, the gate passes it instead, and outputs are multiplied by its derivative there.

    ``signs (k)``, of a dtype of `DTYPE_CODES`, flip the signs of each block of ``x``, or of ``y`` if ``flip_outputs``.

    ``overlapped`` rows are transformed while the preceding kernel ends. That must be one of this package which wrote
    neither ``x`` nor ``signs``, such as that of `weight_spectra`.

    ``column_sums`` is that of `column_sums_like`, to be written.

    Raises:
        UnsupportedError: the spectrum of 16 rows does not fit shared memory.
    """
    rows, sizes = x.shape[0], (x.shape[1] // block_size, y.shape[1] // block_size)
    problem = FusedRows(block_size, *sizes, x.dtype)
    tile = tile or row_tile(problem, rows)
    if tile is None:
        raise UnsupportedError(too_wide(x.shape[1]))
    chunks = -(-problem.out_blocks // (tile.chunk * tile.splits))
    of_x, of_gate = (activation, 0) if gate is None else (0, activation)
    steps = RowSteps(bias is not None, relu, of_x, of_gate, overlapped, column_sums is not None)
    macros = problem.row_macros(tile, steps, signs, flip_outputs)
    grid = -(-rows // 16), -(-problem.out_blocks // (tile.chunk * chunks))
    unused = eigenbasis(block_size, x.device)
    operands: list[Tensor] = [
        x,
        units(spectra),
        tables(block_size, x.dtype, x.device),
        unused if bias is None else bias,
        y,
    ]
    last = [
        unused if signs is None else signs,
        x if gate is None else gate,
        unused if column_sums is None else column_sums,
    ]
    _launch("fused_rows", "rows", macros, grid, [*operands, rows, chunks, *last], problem.row_bytes(tile))


def column_sums_like(x: Tensor) -> Tensor:
    """Uninitialized sums of each 16 rows of ``x``, whose sums over columns are those of ``x``."""
    return x.new_empty(-(-x.shape[0] // 16), x.shape[1], dtype=torch.float32)


def too_wide(width: int) -> str:
    """Why rows of ``width`` elements are refused."""
    return f"expected rows whose spectra fit shared memory, got rows of {width}"


def run_weight_gradient(
    dy: Tensor, x: Tensor, dw: Tensor, tile: WeightTile | None = None, splits: int | None = None,
    signs: Tensor | None = None, activation: int = 0, overlapped: bool = False,
    column_sums: Tensor | None = None, db: Tensor | None = None,
) -> None:  # fmt: skip
    """Write the weight gradient of ``dy (rows, p k)`` and ``x (rows, q k)`` to ``dw (p, q, k)``.

    ``signs (k)``, of a dtype of `DTYPE_CODES`, flip the signs of each block of ``x``. ``activation`` is the code of
    what ``x`` passes as it is read. ``overlapped`` rows are fetched while the preceding kernel ends, as in `run_rows`.
    Output blocks of ``tile`` are those of the wider of the two. The sums of the columns of ``column_sums`` are written
    to ``db``.
    """
    (p, q, k), rows = dw.shape, x.shape[0]
    transposed = p < q  # the wider rows are read once, the others again for each group of them
    if transposed:
        dy, x, p, q = x, dy, q, p
    problem = FusedRows(k, q, p, x.dtype)
    tile = tile or weight_tile(problem, rows, activation)
    tiles = problem.weight_tiles(tile)
    splits = splits or max(1, MULTIPROCESSORS // tiles)
    rows_per_block = max(1, -(-rows // (splits * 16))) * 16
    splits = max(1, -(-rows // rows_per_block))
    partials = x.new_empty(splits, tiles, problem.slots * tile.out_tiles * tile.in_tiles * 64, dtype=torch.float32)
    operands: list[Tensor | int] = [dy, x, tables(k, x.dtype, x.device), partials, rows, rows_per_block]
    operands.append(eigenbasis(k, x.device) if signs is None else signs)
    macros = problem.weight_macros(tile, signs, transposed, activation, overlapped)
    shared = problem.weight_bytes(tile)
    _launch("fused_weight_gradient", "weight_gradient", macros, (splits, tiles), operands, shared)
    warps = 1 if kernel_class is not Kernel else min(2 * problem.slots, 32)
    sums, bias = (partials, partials) if column_sums is None or db is None else (column_sums, db)
    sum_rows, width = (0, 0) if sums is partials else sums.shape
    sum_columns = 8 if sum_rows > MANY_SUMS and width <= FEW_COLUMNS else 32
    macros = problem.macros(warps) | {
        "WEIGHT_TYPE": DTYPE_CODES[dw.dtype], "BIAS_TYPE": DTYPE_CODES[bias.dtype], "SUM_COLUMNS": sum_columns,
        "OUT_TILES": tile.out_tiles, "IN_TILES": tile.in_tiles, "SWAPPED": int(transposed),
    }  # fmt: skip
    grid = (tiles * tile.out_tiles * tile.in_tiles * 8 + -(-width // sum_columns),)
    operands = [partials, inverse_eigenbasis(k, x.device), dw, splits, tiles, sums, bias, sum_rows, width]
    _launch("reduce_weight_gradient", "weight_reduction", macros, grid, operands)
