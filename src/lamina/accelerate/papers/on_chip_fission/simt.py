"""On-chip near-compute data fission: GEMMs on CUDA cores whose operands are packed in shared memory only.

Device memory holds float32. Kernels pack values when they write shared memory and unpack them when they read them into
registers. With the format ``float`` the same kernel keeps float32 in shared memory, as the baseline.

Source: Hill et al., DeftNN, MICRO 2017, section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from lamina.accelerate.common.choices import check_choice
from lamina.accelerate.common.geometry import Conv2dGeometry, Pair
from lamina.accelerate.common.operands import sizes
from lamina.accelerate.common.tiling import MULTIPROCESSORS
from lamina.accelerate.methods.weight_only.config import Format
from lamina.accelerate.methods.weight_only.formats import exponent_bits
from lamina.accelerate.papers.on_chip_fission.config import ON_CHIP, OnChip, Tile, check_tile
from lamina.accelerate.runtime.constants import constant
from lamina.accelerate.runtime.nvrtc import Arguments, Kernel, Launchable
from lamina.errors import MissingError, UnsupportedError, UsageError

SOURCE = Path(__file__).with_name("kernels.cu")
LANES = 16
"""Threads of a block along each axis; each thread computes ``tile x tile`` outputs."""
DEPTH = 16
"""Granularity of K: a block stages 16 or 8 elements of K at a time, and splits are multiples of 16."""

_CODES = {"float": 0, "half": 1, "deft16": 2, "deft16q": 3}
_NARROW = 4


def values(format: OnChip) -> int:
    """Values per 32-bit word of shared memory."""
    return {"float": 1, "half": 2, "deft16": 2, "deft16q": 2}.get(format, 4)


def linear(x: Tensor, weight: Tensor, *, format: OnChip = "float", tile: Tile = 8, splits: int | None = None) -> Tensor:
    """``x W^T`` of ``x (rows, inputs)`` and ``weight (outputs, inputs)``, in float32: ``(rows, outputs)``.

    Args:
        x, weight: contiguous, on a GPU.
        format: of values in shared memory. ``deft16q`` pairs inputs ``2 i`` and ``2 i + 1``, the second without a mask.
        tile: outputs of a thread along each axis.
        splits: split-K; by default as many as fill the GPU.

    Raises:
        UsageError: sizes, dtypes or devices do not fit.
        MissingError: there is no GPU.
    """
    _check(x, weight, 2)
    if x.shape[1] != weight.shape[1]:
        raise UsageError(f"x: expected (rows, {weight.shape[1]}), got {sizes(x)}")
    (rows, inputs), outputs = x.shape, len(weight)
    y = x.new_zeros(rows, outputs)
    if not (y.numel() and inputs):
        return y
    at = plan(outputs, rows, inputs, tile, splits)
    partials = _partials(y, at)
    launchable = kernel("linear", format, tile, _quads(inputs, x, weight), x.device.type)
    launchable.launch(at.grid, (LANES * LANES,), [weight, x, partials, outputs, rows, inputs, at.k_per_split])
    return partials.sum(0) if at.splits > 1 else y


def conv2d(
    x: Tensor,
    weight: Tensor,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    *,
    format: OnChip = "float",
    tile: Tile = 8,
    splits: int | None = None,
    taps: Tensor | None = None,
) -> Tensor:
    """A convolution of ``x (N, C, H, W)`` with ``weight (outputs, C, KH, KW)`` as an implicit GEMM.

    A table holds the offset of each tap. Arguments and errors as for `linear`; a word holds neighbours in the order of
    channels, rows and columns of the kernel. ``taps``, from the function `taps` with an index of channels, leads the
    kernel past the others: ``weight`` then has the channels of the index.
    """
    _check(x, weight, 4)
    if taps is None and x.shape[1] != weight.shape[1]:
        raise UsageError(f"x: expected (N, {weight.shape[1]}, H, W), got {sizes(x)}")
    (images, channels, height, width), outputs = x.shape, len(weight)
    depth = weight[0].numel() if outputs else 0
    geometry = Conv2dGeometry.of(weight.shape[2:], stride, padding, dilation)
    out = geometry.output_size(height, width)
    y = x.new_zeros(images, outputs, *out)
    if not (y.numel() and depth):
        return y
    at = plan(outputs, images * out[0] * out[1], depth, tile, splits)
    partials = _partials(y, at)
    if taps is None:
        taps = _taps(channels, height, width, geometry.kernel, geometry.dilation, x.device)
    elif taps.shape != (expected := (ceil(depth / DEPTH) * DEPTH, 2)):
        raise UsageError(f"taps: expected {expected} for {depth} taps in all, got {sizes(taps)}")
    launchable = kernel("convolution", format, tile, _quads(depth, weight), x.device.type)
    image = [channels, height, width, *out, *stride, *padding]
    args: Arguments = [weight, x, taps, partials, outputs, images, depth, at.k_per_split, *image]
    launchable.launch(at.grid, (LANES * LANES,), args)
    return partials.sum(0) if at.splits > 1 else y


def through(x: Tensor, format: OnChip) -> Tensor:
    """``x`` packed and unpacked, as a product reads it, with ``values(format)`` neighbours per word.

    Raises:
        UsageError: ``x`` is not float32, or its size is not a multiple of the values per word.
    """
    if x.dtype != torch.float32 or x.numel() % values(format):
        raise UsageError(f"x: expected float32 in words of {values(format)}, got {x.dtype} {sizes(x)}")
    y, words = torch.empty_like(x), x.numel() // values(format)
    if words:
        launchable = kernel("through", format, 4, False, x.device.type)
        launchable.launch((ceil(words / 128),), (128,), [x, y, words])
    return y


@dataclass(frozen=True)
class Plan:
    """The grid of a product, and the elements of K per split."""

    grid: tuple[int, int, int]
    k_per_split: int

    @property
    def splits(self) -> int:
        """Number of splits of K."""
        return self.grid[2]


RESIDENT = {4: 4, 6: 2, 8: 2}
"""Resident blocks per multiprocessor, by tile."""


def plan(outputs: int, rows: int, depth: int, tile: Tile, splits: int | None = None) -> Plan:
    """The grid of a product, with the smallest split-K that best fills the multiprocessors.

    Raises:
        UsageError: an unknown tile, or ``splits`` below 1.
    """
    check_tile(tile)
    if splits is not None and splits < 1:
        raise UsageError(f"splits: expected at least 1, got {splits}")
    side, stages = LANES * tile, ceil(depth / DEPTH)
    tiles = ceil(rows / side) * ceil(outputs / side)
    if splits is None:
        resident = MULTIPROCESSORS * RESIDENT[tile]
        most = min(stages // 8, 16) or 1
        # Each further split adds a reduction over the output, modelled as 1 %.
        splits = min(range(1, most + 1), key=lambda s: (ceil(tiles * s / resident) / s) * (1 + 0.01 * s))
    k_per_split = ceil(stages / splits) * DEPTH
    return Plan((ceil(rows / side), ceil(outputs / side), ceil(depth / k_per_split)), k_per_split)


@cache
def kernel(name: str, format: OnChip, tile: Tile, quads: bool, device: str) -> Launchable:
    """A kernel of the source, compiled at its first launch; ``quads``: with loads of four values.

    Raises:
        UsageError: an unknown format.
        MissingError: the device is not a GPU.
    """
    defined = macros(format, tile, quads)
    if device != "cuda":
        raise MissingError(f"fission on chip: expected tensors on a CUDA device, got {device}; move them there")
    return Kernel(SOURCE.read_text(encoding="utf-8"), name, macros=defined)


def macros(format: OnChip, tile: Tile, quads: bool) -> dict[str, int | str]:
    """Macros of the source.

    Raises:
        UsageError: an unknown format.
    """
    check_choice("format", format, ON_CHIP)
    narrow = format not in _CODES
    return {
        "TILE": tile,
        "FORMAT": _NARROW if narrow else _CODES[format],
        "EXPONENT": exponent_bits(cast(Format, format)) if narrow else 5,
        "VECTOR": int(quads),
    }


def _check(x: Tensor, weight: Tensor, dims: int) -> None:
    for name, tensor in (("x", x), ("weight", weight)):
        if tensor.dim() != dims or tensor.dtype != torch.float32:
            raise UsageError(f"{name}: expected float32 of {dims} dimensions, got {tensor.dtype} {sizes(tensor)}")
    if x.device != weight.device:
        raise UsageError(f"weight: expected it on {x.device} with x, got {weight.device}")


def _partials(y: Tensor, at: Plan) -> Tensor:
    return y.new_empty(at.splits, *y.shape) if at.splits > 1 else y


def _quads(depth: int, *tensors: Tensor) -> bool:
    """Whether four consecutive elements of K can be loaded at once."""
    return depth % 4 == 0 and all(tensor.data_ptr() % 16 == 0 for tensor in tensors)


def taps(
    channels: int, height: int, width: int, kernel: tuple[int, int], dilation: tuple[int, int], device: torch.device,
    index: Tensor,
) -> Tensor:  # fmt: skip
    """The table of `conv2d` for the channels of ``index (kept,)`` alone: ``(taps, 2)``, padded to whole stages."""
    whole = _taps(channels, height, width, kernel, dilation, device)
    count = channels * kernel[0] * kernel[1]
    kept = whole[:count].view(channels, -1, 2)[index].flatten(0, 1)
    missing = -len(kept) % DEPTH
    beyond = torch.stack([whole.new_zeros(missing), whole.new_full((missing,), 0x7FFF << 16)], 1)  # made on the device
    return torch.cat([kept, beyond])


@constant
def _taps(
    channels: int, height: int, width: int, kernel: tuple[int, int], dilation: tuple[int, int], device: torch.device
) -> Tensor:
    """For each element of K its offset from the window's first pixel, and its row and column there.

    Padded to whole stages; padding elements are outside every image.
    """
    channel, down, right = torch.meshgrid(*map(torch.arange, (channels, *kernel)), indexing="ij")
    down, right = down * dilation[0], right * dilation[1]
    if max(int(down.max()), int(right.max())) >= 2**15 or channels * height * width >= 2**31:
        raise UnsupportedError("fission on chip: expected kernels and images whose indices fit 15 and 31 bits")
    away = (channel * height + down) * width + right
    taps = torch.stack([away.flatten(), (down << 16 | right).flatten()], 1)
    missing = -len(taps) % DEPTH
    beyond = torch.tensor([[0, 0x7FFF << 16]]).expand(missing, 2)
    return torch.cat([taps, beyond]).int().contiguous().to(device)
