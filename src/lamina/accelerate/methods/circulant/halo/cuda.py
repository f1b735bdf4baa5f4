"""Products of spectra over sliding windows by CUDA kernels that keep a tile of pixels, with its halo, in shared memory.

Taps read what their neighbours have read, which the tile language's kernels leave to the caches. These are for large
images of 16-bit spectra, in one part or two, with few blocks a pixel and one group; everything else is for those.

Where pixels are narrow, neighbours are multiplied together, and what is not finite may reach up to three pixels beside
those whose window holds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from itertools import product as product_of
from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.common.tiling import MULTIPROCESSORS, SHARED_MEMORY
from lamina.accelerate.methods.circulant.basis import num_terms
from lamina.accelerate.methods.circulant.window import Window
from lamina.accelerate.runtime.nvrtc import DTYPE_CODES, Kernel, Launchable, with_common_header
from lamina.accelerate.runtime.target_info import shared_memory

SUMS = {1: 14, 2: 12}
"""Products of 16 by 8 numbers that a warp sums up at a time for a weight gradient, by terms."""
MOST_BLOCKS = 16
"""Of a pixel: of more of them, a product is bound by tensor cores."""
MOST_PRODUCTS = 128
"""Tensor-core instructions of sixteen places of output pixels, all of which are written out."""
MOST_SUMS = 36
"""Products of 16 by 8 numbers that make a weight gradient: 18 were measured to pay, 72 not to."""
SMALL = 2**20
"""Numbers of a spectrum from which these are taken; the smallest that was measured has three times as many."""

FOLDER = files(__package__)

kind: Any = Kernel
"""What compiles; tests put in its place what runs the same source on the CPU."""


@dataclass(frozen=True)
class Block:
    """A block's tile of output places, and how its warps divide the work.

    A processor runs so many ``blocks`` of so many ``warps``. A tile has at most so many ``places``: more share a halo,
    fewer leave room. All but one of its ``stages`` are being copied. For a weight gradient, ``shares`` warps have some
    of its rows each.
    """

    warps: int
    blocks: int
    places: int
    stages: int
    shares: int = 1
    high: int = 1
    wide: int = 1


BLOCKS = {
    ("product", 1): (Block(warps=4, blocks=4, places=450, stages=2),),
    ("product", 2): (Block(warps=8, blocks=2, places=800, stages=3), Block(warps=4, blocks=4, places=230, stages=2)),
    ("weight_gradient", 1): (Block(warps=4, blocks=3, places=800, stages=3),),
    ("weight_gradient", 2): (Block(warps=4, blocks=3, places=450, stages=2),),
}
"""For each kernel and terms, as measured: for images that are one tile, and for others, if those differ."""


@dataclass(frozen=True)
class Slide:
    """A window that slides over pixels of ``read`` blocks and makes or meets ``made`` ones, ``terms`` of a number.

    So many pixels of a line are ``together`` a place.
    """

    window: Window
    read: int
    made: int
    terms: int
    together: int = 1

    @property
    def width(self) -> int:
        """Output places of a line."""
        return -(-self.window.out_width // self.together)

    @property
    def along(self) -> int:
        """Places of a line that an output place reads."""
        w = self.window
        if self.together == 1:
            return w.kernel_width
        reach = (w.kernel_width - 1) * w.dilation_width + (self.together - 1) * w.stride_width
        return reach // self.together + 1

    @property
    def read_eights(self) -> int:
        """Eights of numbers of a place that is read."""
        return -(-self.together * 2 * self.read // 8)

    @property
    def made_eights(self) -> int:
        """Eights of numbers of a place that is made or met."""
        return -(-self.together * 2 * self.made // 8)

    @property
    def sixteens(self) -> int:
        """Pairs of eights of numbers that an output place reads."""
        return -(-self.window.kernel_height * self.along * self.read_eights // 2)

    @property
    def products(self) -> int:
        """Tensor-core instructions of sixteen output places."""
        return self.sixteens * self.made_eights

    def inputs(self, block: Block) -> int:
        """Places that a tile reads."""
        w = self.window
        apart = w.dilation_width if self.together == 1 else 1
        high = (block.high - 1) * w.stride_height + (w.kernel_height - 1) * w.dilation_height + 1
        return high * ((block.wide - 1) * w.stride_width + (self.along - 1) * apart + 1)

    def product_bytes(self, block: Block) -> int:
        """Shared memory of a block of the product: factors, and stages of places."""
        return self.terms * (self.products * 256 + block.stages * 16 * self.read_eights * self.inputs(block))

    def gradient_bytes(self, block: Block) -> int:
        """Shared memory of a block of the weight gradient: stages of both, which its sums take the place of."""
        met = -(-block.high * block.wide // 32) * 32
        stage = 16 * self.terms * (self.read_eights * self.inputs(block) + self.made_eights * met)
        return max(block.stages * stage, self.products * 16 * 32)

    def fitted(self, block: Block, size: Callable[[Block], int]) -> Block | None:
        """The largest tiles that divide the image evenly and are small enough; None if there are none."""
        for blocks, most in product_of(range(block.blocks, 0, -1), (128, 32)):
            wide = _even(self.width, most)
            for high in range(min(self.window.out_height, max(1, block.places // wide)), 0, -1):
                tile = replace(block, blocks=blocks, high=_even(self.window.out_height, high), wide=wide)
                if size(tile) <= SHARED_MEMORY // blocks - 1024:
                    return tile
        return None

    def switches(self, block: Block, dtype: torch.dtype, back: bool) -> dict[str, int]:
        """Macros of the source."""
        w = self.window
        return {
            "TYPE": DTYPE_CODES[dtype], "TERMS": self.terms, "SUMMED": self.read, "KEPT": self.made,
            "KH": w.kernel_height, "KW": w.kernel_width, "SH": w.stride_height, "SW": w.stride_width,
            "DH": w.dilation_height, "DW": w.dilation_width,
            "TOGETHER": self.together, "HIGH": block.high, "WIDE": block.wide,
            "STAGES": block.stages, "WARPS": block.warps, "RESIDENT": block.blocks, "SHARES": block.shares,
            "BACK": int(back), "WHOLE": int(block.wide * self.together == w.out_width),
        }  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """A kernel, made, and all that it is told besides its tensors."""

    kernel: Launchable
    grid: tuple[int, int]
    threads: int
    sizes: tuple[int, ...]
    shared: int

    def __call__(self, *tensors: Tensor, more: tuple[float, ...] = ()) -> None:
        self.kernel.launch(self.grid, (self.threads,), [*tensors, *self.sizes, *more], self.shared)


def spectral_matmul(a: Tensor, ws: Tensor, out: Tensor, window: Window, back: bool, down: float) -> bool:
    """Fill ``out`` with the product of spectra times ``down``, or ``back`` with the input gradient's.

    Returns:
        Whether the kernels take these; if not, nothing is done.
    """
    slots, outputs, _, q = ws.shape[-4:]
    p = outputs // (window.taps * window.groups)
    if not _takes(window, a, ws) or (back and (window.stride_height, window.stride_width) != (1, 1)):
        return False
    blocks = (p, q) if back else (q, p)
    launch = _planned(kind, "product", _room(kind, a.device), a.dtype, slots, window, *blocks, num_terms(a), back)
    if launch is None:
        return False
    launch(a, ws, out, more=(float(down),))
    return True


def weight_gradient(dys: Tensor, xs: Tensor, window: Window) -> Tensor | None:
    """Shares of the weight gradient's spectrum ``[shares, F, p*taps, 2, q]`` in float32, to be reduce_split_k in order.

    None if the kernels do not take these.
    """
    slots, p, q = dys.shape[-4], dys.shape[-1] // window.groups, xs.shape[-1] // window.groups
    if not _takes(window, dys, xs):
        return None
    room = _room(kind, dys.device)
    launch = _planned(kind, "weight_gradient", room, dys.dtype, slots, window, q, p, num_terms(dys), False)
    if launch is None:
        return None
    shares = xs.new_empty(launch.grid[1], slots, p * window.taps, 2, q, dtype=torch.float32)
    launch(dys, xs, shares)
    return shares


def _takes(window: Window, a: Tensor, b: Tensor) -> bool:
    whole = a.data_ptr() % 16 == b.data_ptr() % 16 == 0  # pieces of up to so many bytes are copied
    return whole and a.itemsize == 2 and window.groups == 1 and window.taps > 1 and a.numel() >= SMALL


@lru_cache(maxsize=16)
def _room(make: Any, device: torch.device) -> int:
    """Bytes of shared memory that a block may have on a device; 0 where it cannot run the kernels."""
    if make is not Kernel:
        return SHARED_MEMORY
    if device.type != "cuda" or torch.version.cuda is None or torch.cuda.get_device_capability(device)[0] < 8:
        return 0
    return shared_memory(device)


@lru_cache(maxsize=1024)
def _planned(
    make: Any, name: str, room: int, dtype: torch.dtype, slots: int, window: Window, read: int, made: int, terms: int,
    back: bool,
) -> Launch | None:  # fmt: skip
    """The kernel and how it is launched on a device with so much ``room``; None if it is not for that."""
    window = _turned(window) if back else window
    slide = Slide(window, read, made, terms, together(window, read, made))
    gradient = name == "weight_gradient"
    if max(read, made) > MOST_BLOCKS or slide.products > (MOST_SUMS if gradient else MOST_PRODUCTS):
        return None
    size = slide.gradient_bytes if gradient else slide.product_bytes
    shares = next(n for n in (1, 2, 4) if slide.products <= n * SUMS[terms]) if gradient else 1
    asked = BLOCKS[name, terms]
    whole = slide.width * window.out_height <= asked[0].places
    block = slide.fitted(replace(asked[0 if whole else -1], shares=shares), size)
    if block is None or size(block) > room:
        return None
    source = with_common_header(FOLDER / "pixels.cu", FOLDER / f"{name}.cu")
    kernel = make(source, name, macros=slide.switches(block, dtype, back), pdl=True)
    down, across = -(-window.out_height // block.high), -(-slide.width // block.wide)
    tiles = window.batch * down * across
    share = -(-tiles // max(1, MULTIPROCESSORS * block.blocks // slots))
    sizes = (
        window.batch, window.height, window.width, window.out_height, window.out_width,
        window.padding_height, window.padding_width, down, across, share,
    )  # fmt: skip
    return Launch(kernel, (slots, -(-tiles // share)), 32 * block.warps, sizes, size(block))


def together(window: Window, read: int, made: int) -> int:
    """Neighbours in a line that are multiplied together, for tensor cores that read and make eight numbers at once."""
    if window.out_width == 1 or min(read, made) > 2:
        return 1
    return 4 if read == 1 else 2


def _turned(window: Window) -> Window:
    """The window that slides over output gradients, with its taps in reverse, to make the input's."""
    reach = (window.kernel_height - 1) * window.dilation_height, (window.kernel_width - 1) * window.dilation_width
    return Window(
        window.batch, window.out_height, window.out_width, window.kernel_height, window.kernel_width, 1, 1,
        reach[0] - window.padding_height, reach[1] - window.padding_width,
        window.dilation_height, window.dilation_width,
    )  # fmt: skip


def _even(size: int, most: int) -> int:
    """The size of as few pieces as there are of ``most``, all alike."""
    return -(-size // -(-size // most))
