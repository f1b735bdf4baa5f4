"""The previous version of the product of single non-zeros, for the ladder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.methods.activation_sparsity.ellpack import cuda
from lamina.accelerate.methods.activation_sparsity.ellpack.cuda import WARP
from lamina.accelerate.methods.activation_sparsity.ellpack.format import EllpackDib
from lamina.accelerate.runtime.nvrtc import DTYPE_CODES

SOURCE = Path(__file__).with_suffix(".cu")


@dataclass(frozen=True)
class ProductTile:
    """The tile of a block: warps, columns of a warp, outputs of a thread, slots unpacked at a time, rows of a panel."""

    warps: int = 12
    warp_columns: int = 16
    thread_outputs: int = 8
    slots: int = 16
    panel: int = 64
    warp: int = WARP

    def shared(self, itemsize: int) -> int:
        """Bytes of shared memory."""
        columns = self.warps * self.warp_columns
        weights = 2 * self.panel * self.warp * self.thread_outputs * itemsize
        return weights + columns * (16 * self.slots + 16) + 16 * self.warps


def product(
    a: Tensor, sparse: EllpackDib, y: Tensor, sizes: tuple[int, int], window: Conv2dGeometry, tile: ProductTile
) -> None:
    """Write the product of weights ``(taps * rows, M)`` and a map of ``sizes`` (height, width) to ``y``."""
    macros = dict(
        WEIGHT_DTYPE=DTYPE_CODES[a.dtype], OUT_DTYPE=DTYPE_CODES[y.dtype], WARPS=tile.warps,
        WARP_COLUMNS=tile.warp_columns, THREAD_OUTPUTS=tile.thread_outputs, SLOTS=tile.slots, AHEAD=2, WARP=tile.warp,
        **window.constexprs(),
    )  # fmt: skip
    outputs, pixels = y.shape[1], y.shape[2] * y.shape[3]
    columns = y.shape[0] * pixels
    grid = -(-columns // (tile.warps * tile.warp_columns)), -(-outputs // (tile.warp * tile.thread_outputs))
    cuda.compiled_kernel(cuda.kernel_class, "product", tuple(macros.items()), SOURCE).launch(
        grid, (tile.warps * tile.warp,),
        [a, sparse.scales, sparse.words, sparse.counts, sparse.scales, y, 0, outputs, a.shape[1], columns, sparse.rows,
         sparse.panel, sparse.words.shape[0], sparse.capacity, sparse.columns, pixels, y.shape[3], *sizes, y.stride(0),
         y.stride(1), y.stride(3)],
        tile.shared(a.itemsize),
    )  # fmt: skip
