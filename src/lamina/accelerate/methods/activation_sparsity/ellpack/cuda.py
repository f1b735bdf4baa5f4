"""The CUDA C++ kernels of ELLPACK-DIB: what they support, their tile sizes and their launches.

Conversion is bound by memory bandwidth, products by that of shared memory. What these kernels do not support is for the
Triton kernels of `kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.common.tiling import MULTIPROCESSORS, SHARED_MEMORY
from lamina.accelerate.methods.activation_sparsity.ellpack.format import TARGET_EXPONENT, EllpackDib
from lamina.accelerate.runtime.nvrtc import DTYPE_CODES, Kernel, Launchable, with_common_header

WARP = 32
L2_BYTES = 48 * 1024 * 1024
"""Bytes of a map that L2 retains from one pass to the next."""
SAMPLE_STRIDE = 16
"""One of this many pieces of a larger map is sampled for its scale."""
MAX_ELEMENTS = 2**31
"""Elements that 32-bit indices address."""

SOURCE = files(__package__) / "kernels.cu"

kernel_class: Any = Kernel
"""Compiles kernels; tests replace it by a class that runs the same source on the CPU."""


@dataclass(frozen=True)
class ConvertTile:
    """The tile of a conversion block: columns, groups of threads along them, and rows of each thread per step."""

    columns: int = 32
    groups: int = 8
    rows: int = 16


@dataclass(frozen=True)
class ProductTile:
    """The tile of a product block.

    Attributes:
        warps: of the block.
        warp_columns: columns of a warp.
        thread_outputs: outputs of a thread, for a quarter of the columns of its warp.
        slots: fetched of each column at a time.
        panel: most rows of a panel.
        warp: threads of a warp.
    """

    warps: int = 12
    warp_columns: int = 32
    thread_outputs: int = 16
    slots: int = 32
    panel: int = 256
    warp: int = WARP

    @property
    def outputs(self) -> int:
        """Outputs of the block."""
        return self.warp // 4 * self.thread_outputs

    @property
    def columns(self) -> int:
        """Columns of the block."""
        return self.warps * self.warp_columns

    def shared(self, panel: int, itemsize: int) -> int:
        """Bytes of shared memory: two panels of weights, and words, lengths and origins of each warp's columns."""
        span = min(self.warp_columns, 16)
        buffers = 8 * span * (self.slots + 2) + self.warp_columns * (24 + 16 + 2) + 8 * (self.warp_columns // span)
        buffers += -buffers % 16
        return 2 * panel * self.outputs * itemsize + self.warps * buffers


@cache
def compiled_kernel(
    compiler: Any, name: str, macros: tuple[tuple[str, int], ...], source: Traversable = SOURCE
) -> Launchable:
    """A kernel of a source, compiled for these macros."""
    kernel: Launchable = compiler(with_common_header(source), name, macros=dict(macros), pdl=True)
    return kernel


def is_supported(x: Tensor) -> bool:
    """Whether the kernels can read or write a tensor: on a GPU, dense in memory, and addressed by 32 bits."""
    on_device = x.is_cuda if kernel_class is Kernel else x.device.type == "cpu"
    return on_device and x.dtype in DTYPE_CODES and 0 < x.numel() < MAX_ELEMENTS and _memory_order(x).is_contiguous()


def is_product_supported(sparse: EllpackDib, y: Tensor, tile: ProductTile, itemsize: int) -> bool:
    """Whether `product` supports its operands: the output is dense in memory, and panels fit shared memory."""
    panel = min(sparse.panel, sparse.rows)
    return is_supported(y) and sparse.rows > 0 and tile.shared(panel, itemsize) <= SHARED_MEMORY


def amax(x: Tensor, threads: int = 256, blocks: int = 8 * MULTIPROCESSORS, every: int = 1) -> Tensor:
    """Partial amaxes of a map that is dense in memory, of every ``every``-th piece of it; and a 0."""
    quads, rest = divmod(x.numel(), 16 // x.itemsize)
    blocks = max(1, min(blocks, -(-quads // (4 * threads * every))))
    partial_amax = x.new_empty(blocks + 1, dtype=torch.float32)
    compiled_kernel(kernel_class, "amax", _convert_macros(x, ConvertTile(), threads)).launch(
        (blocks,), (threads,), [_memory_order(x), partial_amax, quads, rest, every]
    )
    return partial_amax


def fit_and_convert(
    x: Tensor, words: Tensor, counts: Tensor, scales: Tensor, panel: int, tile: ConvertTile | None = None
) -> None:
    """`convert` with the fitted scale, which is written to ``scales``.

    A map that fits L2 is read twice. A larger one is sampled for its amax, and converted again if the amax of the whole
    map gives another scale.
    """
    if x.numel() * x.itemsize <= L2_BYTES:
        convert(x, words, counts, scales, panel, amax(x), tile=tile)
        return
    partial_amax = amax(x, blocks=MULTIPROCESSORS, every=SAMPLE_STRIDE)
    for sampled in (1, 2):
        convert(x, words, counts, scales, panel, partial_amax, sampled, tile)


def convert(
    x: Tensor, words: Tensor | None, counts: Tensor, scales: Tensor, panel: int, partial_amax: Tensor | None = None,
    sampled: int = 0, tile: ConvertTile | None = None,
) -> None:  # fmt: skip
    """Convert a map ``(N, C, 1, W)`` to ELLPACK-DIB; without ``words``, only count its non-zeros.

    ``scales`` are derived from ``partial_amax``, the result of an `amax` launched immediately before; if it is omitted,
    they are given. ``sampled``: 1 if the amax was sampled, 2 to convert again if the sample gave another scale.
    """
    images, rows, _, pixels = x.shape
    x_n, x_c, _, x_p = (stride if size > 1 else 0 for stride, size in zip(x.stride(), x.shape, strict=True))
    tile = tile or convert_tile(min(rows, panel))
    capacity, panels = 0 if words is None else words.shape[1], counts.shape[0]
    piece = 16 // x.itemsize
    channels_last = x_c == 1 and not any(size % piece for size in (rows, min(rows, panel), x_n, x_p, tile.rows))
    tiles = -(-images * pixels // tile.columns) * panels
    staged = min(rows, panel) <= tile.groups * tile.rows
    compiled_kernel(kernel_class, "convert", _convert_macros(x, tile, WARP, channels_last, staged, sampled)).launch(
        (min(tiles, 2 * MULTIPROCESSORS) if sampled == 2 else tiles,), (tile.columns * tile.groups,),
        [_memory_order(x), counts if words is None else words, counts, scales,
         scales if partial_amax is None else partial_amax, 0 if partial_amax is None else partial_amax.numel() - 1,
         rows, images * pixels, panel, panels, capacity, pixels, x_n, x_c, x_p, int(words is not None)],
    )  # fmt: skip


def convert_tile(rows: int) -> ConvertTile:
    """As many groups as the rows of a panel need."""
    return ConvertTile(groups=4 if rows <= 64 else 8, rows=16 if rows <= 128 else 32)


def weights(at: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights ``(rows, M)`` as the product reads them: rows are padded to multiples of 16 bytes."""
    piece = 16 // dtype.itemsize
    if at.dtype == dtype and at.is_contiguous() and at.shape[1] % piece == 0 and at.data_ptr() % 16 == 0:
        return at
    padded = at.new_zeros((at.shape[0], -(-at.shape[1] // piece) * piece), dtype=dtype)
    padded[:, : at.shape[1]].copy_(at)
    return padded


def product_tile(outputs: int, columns: int, itemsize: int) -> ProductTile:
    """Columns of a warp that balance the blocks over the multiprocessors; panels of which two fit shared memory."""
    thread_outputs = 16 if outputs > 64 else 8
    block_m = WARP // 4 * thread_outputs
    waves = {w: -(-(-(-columns // (12 * w)) * -(-outputs // block_m)) // MULTIPROCESSORS) * w for w in (32, 16, 8)}
    warp_columns, panel = min(waves, key=waves.__getitem__), (1 << 16) // (block_m * itemsize)
    return ProductTile(warp_columns=warp_columns, thread_outputs=thread_outputs, panel=panel)


def product(
    a: Tensor, bias: Tensor | None, sparse: EllpackDib, y: Tensor, sizes: tuple[int, int], window: Conv2dGeometry,
    tile: ProductTile,
) -> None:  # fmt: skip
    """Write the product of `weights` and a map of ``sizes`` (height, width) to ``y (N, M, H', W')``."""
    macros = dict(
        WEIGHT_DTYPE=DTYPE_CODES[a.dtype], OUT_DTYPE=DTYPE_CODES[y.dtype], WARPS=tile.warps,
        WARP_COLUMNS=tile.warp_columns, THREAD_OUTPUTS=tile.thread_outputs, SLOTS=tile.slots, WARP=tile.warp,
        **window.constexprs(),
    )  # fmt: skip
    outputs, pixels = y.shape[1], y.shape[2] * y.shape[3]
    columns = y.shape[0] * pixels
    panel = min(sparse.panel, sparse.rows)
    compiled_kernel(kernel_class, "product", tuple(macros.items())).launch(
        (-(-columns // tile.columns), -(-outputs // tile.outputs)), (tile.warps * tile.warp,),
        [a, sparse.scales if bias is None else bias.float(), sparse.words, sparse.counts, sparse.scales,
         _memory_order(y), int(bias is not None), outputs, a.shape[1], columns, sparse.rows, panel,
         sparse.words.shape[0], sparse.capacity, sparse.columns, pixels, y.shape[3], *sizes, y.stride(0), y.stride(1),
         y.stride(3)],
        tile.shared(panel, a.itemsize),
    )  # fmt: skip


def _memory_order(x: Tensor) -> Tensor:
    """The tensor with its dimensions in memory order."""
    return x.permute(sorted(range(x.dim()), key=lambda axis: (-x.stride()[axis], -x.shape[axis])))


def _convert_macros(
    x: Tensor, tile: ConvertTile, threads: int, channels_last: bool = False, staged: bool = False, sampled: int = 0
) -> tuple[tuple[str, int], ...]:
    return (
        ("MAP_DTYPE", DTYPE_CODES[x.dtype]), ("THREADS", threads), ("COLUMNS", tile.columns), ("GROUPS", tile.groups),
        ("THREAD_ROWS", tile.rows), ("TARGET_EXPONENT", TARGET_EXPONENT), ("CHANNELS_LAST", int(channels_last)),
        ("STAGED", int(staged)), ("SAMPLED", sampled), ("WARP", WARP),
    )  # fmt: skip
