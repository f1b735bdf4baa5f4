"""Spectral matmuls of convolutions by CUDA kernels that keep a tile of pixels, with its halo, in shared memory.

Filter taps then read overlapping pixels from shared memory, which the Triton kernels leave to the caches. These kernels
support large images of 16-bit spectra in one or two terms, with few blocks per pixel and one group; all other problems
use the Triton kernels.

Narrow neighboring pixels are packed into one matmul operand. A nonfinite value may then reach up to three pixels beside
those whose window contains it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from itertools import product
from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.common.tiling import MULTIPROCESSORS, SHARED_MEMORY
from lamina.accelerate.methods.circulant.basis import num_terms
from lamina.accelerate.runtime.nvrtc import DTYPE_CODES, Kernel, Launchable, with_common_header
from lamina.accelerate.runtime.target_info import shared_memory

MAX_WARP_MMAS = {1: 14, 2: 12}
"""MMA tiles of 16 by 8 elements that a warp accumulates for a weight gradient, by terms."""
MAX_BLOCKS = 16
"""Circulant blocks of a pixel; with more, the matmul is bound by tensor cores."""
MAX_MMAS = 128
"""MMA instructions for sixteen packs of output pixels, which are fully unrolled."""
MAX_WEIGHT_MMAS = 36
"""MMA tiles of a weight gradient: 18 were measured to pay, 72 not to."""
MIN_NUMEL = 2**20
"""Elements of a spectrum from which these kernels are used; the smallest that was measured has three times as many."""

FOLDER = files(__package__)

kernel_class: Any = Kernel
"""Compiles and launches the source; tests replace it by one that runs the same source on the CPU."""


@dataclass(frozen=True)
class Tile:
    """The tile of output packs of a thread block, and its launch parameters.

    ``blocks_per_sm`` thread blocks of ``num_warps`` warps are resident on a multiprocessor. A tile has at most
    ``max_packs`` packs: more share a halo, fewer leave shared memory for other blocks. All but one of its
    ``num_stages`` are being copied. For a weight gradient, the rows of the matmul are divided among ``warps_m`` warps.
    """

    num_warps: int
    blocks_per_sm: int
    max_packs: int
    num_stages: int
    warps_m: int = 1
    height: int = 1
    width: int = 1


TILES = {
    ("spectral_matmul", 1): (Tile(num_warps=4, blocks_per_sm=4, max_packs=450, num_stages=2),),
    ("spectral_matmul", 2): (
        Tile(num_warps=8, blocks_per_sm=2, max_packs=800, num_stages=3),
        Tile(num_warps=4, blocks_per_sm=4, max_packs=230, num_stages=2),
    ),
    ("weight_gradient", 1): (Tile(num_warps=4, blocks_per_sm=3, max_packs=800, num_stages=3),),
    ("weight_gradient", 2): (Tile(num_warps=4, blocks_per_sm=3, max_packs=450, num_stages=2),),
}
"""By kernel and terms, as measured: for images that fit one tile, and for others if those differ."""


@dataclass(frozen=True)
class HaloConv:
    """A convolution of spectra: its geometry, the circulant blocks of input and output pixels, and the terms.

    ``pack_size`` neighboring pixels of a line form a *pack*, the unit of the matmul.
    """

    geometry: Conv2dProblem
    in_blocks: int
    out_blocks: int
    terms: int
    pack_size: int = 1

    @property
    def line_packs(self) -> int:
        """Output packs of a line."""
        return -(-self.geometry.out_width // self.pack_size)

    @property
    def window_packs(self) -> int:
        """Packs of a line that an output pack reads."""
        g = self.geometry
        if self.pack_size == 1:
            return g.kernel_width
        reach = (g.kernel_width - 1) * g.dilation_width + (self.pack_size - 1) * g.stride_width
        return reach // self.pack_size + 1

    @property
    def in_vectors(self) -> int:
        """Vectors of 8 elements of an input pack."""
        return -(-self.pack_size * 2 * self.in_blocks // 8)

    @property
    def out_vectors(self) -> int:
        """Vectors of 8 elements of an output pack."""
        return -(-self.pack_size * 2 * self.out_blocks // 8)

    @property
    def k_steps(self) -> int:
        """MMA steps of 16 elements over what an output pack reads."""
        return -(-self.geometry.kernel_height * self.window_packs * self.in_vectors // 2)

    @property
    def mmas(self) -> int:
        """MMA instructions for sixteen output packs."""
        return self.k_steps * self.out_vectors

    def input_packs(self, tile: Tile) -> int:
        """Packs that a tile reads, with its halo."""
        g = self.geometry
        dilation = g.dilation_width if self.pack_size == 1 else 1
        height = (tile.height - 1) * g.stride_height + (g.kernel_height - 1) * g.dilation_height + 1
        return height * ((tile.width - 1) * g.stride_width + (self.window_packs - 1) * dilation + 1)

    def matmul_bytes(self, tile: Tile) -> int:
        """Shared memory of a thread block of the matmul: weights, and stages of packs."""
        return self.terms * (self.mmas * 256 + tile.num_stages * 16 * self.in_vectors * self.input_packs(tile))

    def gradient_bytes(self, tile: Tile) -> int:
        """Shared memory of a thread block of the weight gradient: stages of both operands, reused for the sums."""
        padded = -(-tile.height * tile.width // 32) * 32
        stage = 16 * self.terms * (self.in_vectors * self.input_packs(tile) + self.out_vectors * padded)
        return max(tile.num_stages * stage, self.mmas * 16 * 32)

    def fit(self, tile: Tile, size: Callable[[Tile], int]) -> Tile | None:
        """The largest tile that divides the image evenly and fits shared memory; None if there is none."""
        for blocks_per_sm, max_width in product(range(tile.blocks_per_sm, 0, -1), (128, 32)):
            width = _even_split(self.line_packs, max_width)
            for rows in range(min(self.geometry.out_height, max(1, tile.max_packs // width)), 0, -1):
                height = _even_split(self.geometry.out_height, rows)
                fitted = replace(tile, blocks_per_sm=blocks_per_sm, height=height, width=width)
                if size(fitted) <= SHARED_MEMORY // blocks_per_sm - 1024:
                    return fitted
        return None

    def macros(self, tile: Tile, dtype: torch.dtype, backward_data: bool) -> dict[str, int]:
        """Macros of the source."""
        g = self.geometry
        return {
            "TYPE": DTYPE_CODES[dtype], "TERMS": self.terms,
            "IN_BLOCKS": self.in_blocks, "OUT_BLOCKS": self.out_blocks,
            "KH": g.kernel_height, "KW": g.kernel_width, "SH": g.stride_height, "SW": g.stride_width,
            "DH": g.dilation_height, "DW": g.dilation_width,
            "PACK_SIZE": self.pack_size, "TILE_HEIGHT": tile.height, "TILE_WIDTH": tile.width,
            "STAGES": tile.num_stages, "WARPS": tile.num_warps, "BLOCKS_PER_SM": tile.blocks_per_sm,
            "WARPS_M": tile.warps_m, "BACKWARD_DATA": int(backward_data),
            "FULL_LINES": int(tile.width * self.pack_size == g.out_width),
        }  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """A compiled kernel, its grid, and its arguments after the tensors."""

    kernel: Launchable
    grid: tuple[int, int]
    threads: int
    sizes: tuple[int, ...]
    shared: int

    def __call__(self, *tensors: Tensor, scalars: tuple[float, ...] = ()) -> None:
        self.kernel.launch(self.grid, (self.threads,), [*tensors, *self.sizes, *scalars], self.shared)


def spectral_matmul(
    a: Tensor, ws: Tensor, out: Tensor, window: Conv2dProblem, backward_data: bool, output_scale: float
) -> bool:
    """Write ``output_scale`` times the spectral matmul, or with ``backward_data`` its input gradient, to ``out``.

    Returns:
        Whether the kernels support the operands; if not, nothing is launched.
    """
    slots, outputs, _, q = ws.shape[-4:]
    p = outputs // (window.taps * window.groups)
    if not _supports(window, a, ws) or (backward_data and (window.stride_height, window.stride_width) != (1, 1)):
        return False
    blocks = (p, q) if backward_data else (q, p)
    capacity = _shared_memory(kernel_class, a.device)
    launch = _launch_for(
        kernel_class, "spectral_matmul", capacity, a.dtype, slots, window, *blocks, num_terms(a), backward_data
    )
    if launch is None:
        return False
    launch(a, ws, out, scalars=(float(output_scale),))
    return True


def weight_gradient(dys: Tensor, xs: Tensor, window: Conv2dProblem) -> Tensor | None:
    """Split-K partials of the spectrum of the weight gradient, ``[split_k, F, p*taps, 2, q]`` in float32.

    None if the kernels do not support the operands.
    """
    slots, p, q = dys.shape[-4], dys.shape[-1] // window.groups, xs.shape[-1] // window.groups
    if not _supports(window, dys, xs):
        return None
    capacity = _shared_memory(kernel_class, dys.device)
    launch = _launch_for(
        kernel_class, "weight_gradient", capacity, dys.dtype, slots, window, q, p, num_terms(dys), False
    )
    if launch is None:
        return None
    partials = xs.new_empty(launch.grid[1], slots, p * window.taps, 2, q, dtype=torch.float32)
    launch(dys, xs, partials)
    return partials


def _supports(window: Conv2dProblem, a: Tensor, b: Tensor) -> bool:
    aligned = a.data_ptr() % 16 == b.data_ptr() % 16 == 0  # cp.async copies up to 16 bytes
    return aligned and a.itemsize == 2 and window.groups == 1 and window.taps > 1 and a.numel() >= MIN_NUMEL


@lru_cache(maxsize=16)
def _shared_memory(kernel: Any, device: torch.device) -> int:
    """Bytes of shared memory that a thread block may use on a device; 0 if it cannot run the kernels."""
    if kernel is not Kernel:
        return SHARED_MEMORY
    if device.type != "cuda" or torch.version.cuda is None or torch.cuda.get_device_capability(device)[0] < 8:
        return 0
    return shared_memory(device)


@lru_cache(maxsize=1024)
def _launch_for(
    kernel: Any, name: str, capacity: int, dtype: torch.dtype, slots: int, window: Conv2dProblem, in_blocks: int,
    out_blocks: int, terms: int, backward_data: bool,
) -> Launch | None:  # fmt: skip
    """The launch on a device with ``capacity`` bytes of shared memory; None if the problem is not supported."""
    window = _backward_data_geometry(window) if backward_data else window
    conv = HaloConv(window, in_blocks, out_blocks, terms, pack_size_for(window, in_blocks, out_blocks))
    gradient = name == "weight_gradient"
    if max(in_blocks, out_blocks) > MAX_BLOCKS or conv.mmas > (MAX_WEIGHT_MMAS if gradient else MAX_MMAS):
        return None
    size = conv.gradient_bytes if gradient else conv.matmul_bytes
    warps_m = next(n for n in (1, 2, 4) if conv.mmas <= n * MAX_WARP_MMAS[terms]) if gradient else 1
    tiles = TILES[name, terms]
    one_tile = conv.line_packs * window.out_height <= tiles[0].max_packs
    tile = conv.fit(replace(tiles[0 if one_tile else -1], warps_m=warps_m), size)
    if tile is None or size(tile) > capacity:
        return None
    source = with_common_header(FOLDER / "tiles.cu", FOLDER / f"{name}.cu")
    compiled = kernel(source, name, macros=conv.macros(tile, dtype, backward_data), pdl=True)
    tiles_y, tiles_x = -(-window.out_height // tile.height), -(-conv.line_packs // tile.width)
    num_tiles = window.batch * tiles_y * tiles_x
    tiles_per_block = -(-num_tiles // max(1, MULTIPROCESSORS * tile.blocks_per_sm // slots))
    sizes = (
        window.batch, window.height, window.width, window.out_height, window.out_width,
        window.padding_height, window.padding_width, tiles_y, tiles_x, tiles_per_block,
    )  # fmt: skip
    return Launch(compiled, (slots, -(-num_tiles // tiles_per_block)), 32 * tile.num_warps, sizes, size(tile))


def pack_size_for(window: Conv2dProblem, in_blocks: int, out_blocks: int) -> int:
    """Neighboring pixels of a line per pack: MMA operands have 8 elements, narrow pixels fewer."""
    if window.out_width == 1 or min(in_blocks, out_blocks) > 2:
        return 1
    return 4 if in_blocks == 1 else 2


def _backward_data_geometry(window: Conv2dProblem) -> Conv2dProblem:
    """The convolution of output gradients, with reversed taps, that gives the input gradient."""
    reach = (window.kernel_height - 1) * window.dilation_height, (window.kernel_width - 1) * window.dilation_width
    return Conv2dProblem(
        window.batch, window.out_height, window.out_width, window.kernel_height, window.kernel_width, 1, 1,
        reach[0] - window.padding_height, reach[1] - window.padding_width,
        window.dilation_height, window.dilation_width,
    )  # fmt: skip


def _even_split(size: int, most: int) -> int:
    """The size of equal pieces, as few as pieces of at most ``most`` allow."""
    return -(-size // -(-size // most))
