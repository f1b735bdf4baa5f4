"""The CUDA C++ kernels: what they take, how much of it each block, and how they are launched.

They read ELLPACK-DIB and write it at the speed of memory and of shared memory; what they do not take is for the
kernels of `kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.common.tiling import MULTIPROCESSORS, SHARED_MEMORY
from lamina.accelerate.methods.activation_sparsity.ellpack.format import LARGEST_EXPONENT, EllpackDib
from lamina.accelerate.methods.activation_sparsity.window import Window
from lamina.accelerate.runtime.nvrtc import DTYPE_CODES, Kernel, Launchable, with_common_header

WARP = 32
CACHED = 48 * 1024 * 1024
"""Bytes of a map that the cache holds from one pass to the next."""
SAMPLED = 16
"""Of so many pieces of a larger map one is looked at for its scale."""
REACH = 2**31
"""Elements that a kernel's whole numbers reach."""

SOURCE = files(__package__) / "kernels.cu"

kind: Any = Kernel
"""What compiles; tests put in its place what runs the same source on the CPU."""


@dataclass(frozen=True)
class Scan:
    """How a block converts: so many columns, groups of threads down them, and rows of each thread at a time."""

    columns: int = 32
    groups: int = 8
    deep: int = 16


@dataclass(frozen=True)
class Block:
    """What a block of the product takes.

    ``warps`` of ``wide`` columns each; ``each`` outputs of a thread, of a quarter of the columns; ``slots`` of a column
    fetched at a time; panels of at most ``panel`` rows.
    """

    warps: int = 12
    wide: int = 32
    each: int = 16
    slots: int = 32
    panel: int = 256
    warp: int = WARP

    @property
    def outputs(self) -> int:
        return self.warp // 4 * self.each

    @property
    def columns(self) -> int:
        return self.warps * self.wide

    def shared(self, panel: int, itemsize: int) -> int:
        """Bytes of shared memory: twice a panel of weights, and of each warp its columns' words, lengths and places."""
        span = min(self.wide, 16)
        room = 8 * span * (self.slots + 2) + self.wide * (24 + 16 + 2) + 8 * (self.wide // span)
        room += -room % 16
        return 2 * panel * self.outputs * itemsize + self.warps * room


@cache
def kernel(make: Any, name: str, macros: tuple[tuple[str, int], ...], source: Traversable = SOURCE) -> Launchable:
    """One kernel of a source, specialised."""
    made: Launchable = make(with_common_header(source), name, macros=dict(macros), pdl=True)
    return made


def takes(x: Tensor) -> bool:
    """Whether the kernels can read or write a tensor: on a GPU, without gaps, and within reach of their numbers."""
    here = x.is_cuda if kind is Kernel else x.device.type == "cpu"
    return here and x.dtype in DTYPE_CODES and 0 < x.numel() < REACH and _laid(x).is_contiguous()


def takes_product(sparse: EllpackDib, y: Tensor, block: Block, itemsize: int) -> bool:
    """Whether `product` can: what it writes is laid without gaps, and panels fit its shared memory."""
    return takes(y) and sparse.rows > 0 and block.shared(min(sparse.panel, sparse.rows), itemsize) <= SHARED_MEMORY


def largest(x: Tensor, threads: int = 256, blocks: int = 8 * MULTIPROCESSORS, every: int = 1) -> Tensor:
    """The largest finite magnitudes of shares of a map without gaps, or of one of ``every`` pieces of it; and a 0."""
    quads, rest = divmod(x.numel(), 16 // x.itemsize)
    blocks = max(1, min(blocks, -(-quads // (4 * threads * every))))
    found = x.new_empty(blocks + 1, dtype=torch.float32)
    kernel(kind, "largest", _scan(x, Scan(), threads)).launch(
        (blocks,), (threads,), [_laid(x), found, quads, rest, every]
    )
    return found


def fit(x: Tensor, words: Tensor, counts: Tensor, scales: Tensor, panel: int, scan: Scan | None = None) -> None:
    """`convert` by the scale that fits, which is written, too.

    A map that the cache holds is read twice. Of another one some is looked at to guess the scale, and should the
    largest magnitude of all tell otherwise, it is converted again.
    """
    if x.numel() * x.itemsize <= CACHED:
        convert(x, words, counts, scales, panel, largest(x), scan=scan)
        return
    found = largest(x, blocks=MULTIPROCESSORS, every=SAMPLED)
    for guessed in (1, 2):
        convert(x, words, counts, scales, panel, found, guessed, scan)


def convert(
    x: Tensor, words: Tensor | None, counts: Tensor, scales: Tensor, panel: int, found: Tensor | None = None,
    guessed: int = 0, scan: Scan | None = None,
) -> None:  # fmt: skip
    """Fill a format from a map ``(N, C, 1, W)``; without ``words``, its counts alone.

    ``found`` are what `largest` gives, launched right in front of this, of which ``scales`` are made; they are given,
    if it is left out. ``guessed``: 1 where that was a part of the map, and 2 to convert again should that have misled.
    """
    images, rows, _, pixels = x.shape
    x_n, x_c, _, x_p = (step if size > 1 else 0 for step, size in zip(x.stride(), x.shape, strict=True))
    scan = scan or convert_scan(min(rows, panel))
    capacity, panels = 0 if words is None else words.shape[1], counts.shape[0]
    piece = 16 // x.itemsize
    last = x_c == 1 and not any(size % piece for size in (rows, min(rows, panel), x_n, x_p, scan.deep))
    tiles = -(-images * pixels // scan.columns) * panels
    staged = min(rows, panel) <= scan.groups * scan.deep
    kernel(kind, "convert", _scan(x, scan, WARP, last, staged, guessed)).launch(
        (min(tiles, 2 * MULTIPROCESSORS) if guessed == 2 else tiles,), (scan.columns * scan.groups,),
        [_laid(x), counts if words is None else words, counts, scales, scales if found is None else found,
         0 if found is None else found.numel() - 1, rows, images * pixels, panel, panels, capacity, pixels, x_n, x_c,
         x_p, int(words is not None)],
    )  # fmt: skip


def convert_scan(rows: int) -> Scan:
    """Groups enough for the rows of a panel, and not more."""
    return Scan(groups=4 if rows <= 64 else 8, deep=16 if rows <= 128 else 32)


def weights(at: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights ``(rows, M)`` as the product reads them: rows begin at whole 16 bytes."""
    piece = 16 // dtype.itemsize
    if at.dtype == dtype and at.is_contiguous() and at.shape[1] % piece == 0 and at.data_ptr() % 16 == 0:
        return at
    padded = at.new_zeros((at.shape[0], -(-at.shape[1] // piece) * piece), dtype=dtype)
    padded[:, : at.shape[1]].copy_(at)
    return padded


def product_block(outputs: int, columns: int, itemsize: int) -> Block:
    """Columns of a warp so that the blocks fill the multiprocessors evenly; panels so that two of them fit."""
    each = 16 if outputs > 64 else 8
    high = WARP // 4 * each
    rounds = {w: -(-(-(-columns // (12 * w)) * -(-outputs // high)) // MULTIPROCESSORS) * w for w in (32, 16, 8)}
    return Block(wide=min(rounds, key=rounds.__getitem__), each=each, panel=(1 << 16) // (high * itemsize))


def product(
    a: Tensor, bias: Tensor | None, sparse: EllpackDib, y: Tensor, sizes: tuple[int, int], window: Window,
    block: Block,
) -> None:  # fmt: skip
    """Fill ``y (N, M, H', W')`` from `weights` of ``(taps * rows, M)`` and a map of ``sizes`` pixels."""
    macros = dict(
        WEIGHT=DTYPE_CODES[a.dtype], OUT=DTYPE_CODES[y.dtype], WARPS=block.warps, WIDE=block.wide, EACH=block.each,
        SLOTS=block.slots, WARP=block.warp, **window.switches(),
    )  # fmt: skip
    outputs, pixels = y.shape[1], y.shape[2] * y.shape[3]
    columns = y.shape[0] * pixels
    panel = min(sparse.panel, sparse.rows)
    kernel(kind, "product", tuple(macros.items())).launch(
        (-(-columns // block.columns), -(-outputs // block.outputs)), (block.warps * block.warp,),
        [a, sparse.scales if bias is None else bias.float(), sparse.words, sparse.counts, sparse.scales, _laid(y),
         int(bias is not None), outputs, a.shape[1], columns, sparse.rows, panel, sparse.words.shape[0],
         sparse.capacity, sparse.columns, pixels, y.shape[3], *sizes, y.stride(0), y.stride(1), y.stride(3)],
        block.shared(panel, a.itemsize),
    )  # fmt: skip


def _laid(x: Tensor) -> Tensor:
    """The same numbers in the order of their memory."""
    return x.permute(sorted(range(x.dim()), key=lambda axis: (-x.stride()[axis], -x.shape[axis])))


def _scan(
    x: Tensor, scan: Scan, threads: int, last: bool = False, staged: bool = False, guessed: int = 0
) -> tuple[tuple[str, int], ...]:
    return (
        ("MAP", DTYPE_CODES[x.dtype]), ("THREADS", threads), ("COLUMNS", scan.columns), ("GROUPS", scan.groups),
        ("DEEP", scan.deep), ("LARGEST", LARGEST_EXPONENT), ("LAST", int(last)), ("STAGED", int(staged)),
        ("GUESSED", guessed), ("WARP", WARP),
    )  # fmt: skip
