"""The product of single non-zeros before the present one, for the ladder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from lamina.accelerate.methods.activation_sparsity.ellpack import cuda as compiled
from lamina.accelerate.methods.activation_sparsity.ellpack.cuda import WARP
from lamina.accelerate.methods.activation_sparsity.ellpack.format import EllpackDib
from lamina.accelerate.methods.activation_sparsity.window import Window
from lamina.accelerate.runtime.nvrtc import DTYPE_CODES

SOURCE = Path(__file__).with_suffix(".cu")


@dataclass(frozen=True)
class Block:
    """``warps`` of ``wide`` columns, ``each`` outputs of a thread, ``slots`` unpacked at a time, rows of a panel."""

    warps: int = 12
    wide: int = 16
    each: int = 8
    slots: int = 16
    panel: int = 64
    warp: int = WARP

    def shared(self, itemsize: int) -> int:
        """Bytes of shared memory."""
        columns = self.warps * self.wide
        return 2 * self.panel * self.warp * self.each * itemsize + columns * (16 * self.slots + 16) + 16 * self.warps


def product(a: Tensor, sparse: EllpackDib, y: Tensor, sizes: tuple[int, int], window: Window, block: Block) -> None:
    """Fill ``y (N, M, H', W')`` from weights of ``(taps * rows, M)`` and a map of ``sizes`` pixels."""
    macros = dict(
        WEIGHT=DTYPE_CODES[a.dtype], OUT=DTYPE_CODES[y.dtype], WARPS=block.warps, WIDE=block.wide, EACH=block.each,
        SLOTS=block.slots, AHEAD=2, WARP=block.warp, **window.switches(),
    )  # fmt: skip
    outputs, pixels = y.shape[1], y.shape[2] * y.shape[3]
    columns = y.shape[0] * pixels
    grid = -(-columns // (block.warps * block.wide)), -(-outputs // (block.warp * block.each))
    compiled.kernel(compiled.kind, "product", tuple(macros.items()), SOURCE).launch(
        grid, (block.warps * block.warp,),
        [a, sparse.scales, sparse.words, sparse.counts, sparse.scales, y, 0, outputs, a.shape[1], columns, sparse.rows,
         sparse.panel, sparse.words.shape[0], sparse.capacity, sparse.columns, pixels, y.shape[3], *sizes, y.stride(0),
         y.stride(1), y.stride(3)],
        block.shared(a.itemsize),
    )  # fmt: skip
