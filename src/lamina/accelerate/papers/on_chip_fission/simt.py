"""Fission on chip: products on plain cores whose operands are packed in shared memory alone.

Device memory holds float32; kernels pack values on their way into shared memory and take them apart when they read
them into registers. Without a format the same kernel keeps float32 there, which is what fission is compared with.

Source: Hill et al., DeftNN, MICRO 2017, section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from lamina.accelerate.common.choices import check_choice
from lamina.accelerate.common.geometry import Conv2dGeometry, Pair
from lamina.accelerate.common.operands import sizes
from lamina.accelerate.common.tiling import MULTIPROCESSORS
from lamina.accelerate.methods.weight_only.config import FORMATS, Format
from lamina.accelerate.methods.weight_only.formats import exponent_bits
from lamina.accelerate.runtime.nvrtc import Kernel, Launchable
from lamina.errors import MissingError, UnsupportedError, UsageError

SOURCE = Path(__file__).with_name("kernels.cu")
LANES = 16
"""Threads of a block on each side; each computes ``tile`` x ``tile`` outputs."""
DEPTH = 16
"""Values of the sum that shares are made of: a block stages so many at a time, or half of them."""

Tile = Literal[4, 6, 8]
TILES: tuple[Tile, ...] = get_args(Tile)

OnChip = Format | Literal["float"]
"""How shared memory holds a value; ``float`` is float32, so nothing is packed."""

_KINDS = {"float": 0, "half": 1, "deft16": 2, "deft16q": 3}
_NARROW = 4


def values(format: OnChip) -> int:
    """How many a word of shared memory holds."""
    return {"float": 1, "half": 2, "deft16": 2, "deft16q": 2}.get(format, 4)


def linear(x: Tensor, weight: Tensor, *, format: OnChip = "float", tile: Tile = 8, splits: int | None = None) -> Tensor:
    """``x W^T`` of ``x (rows, inputs)`` and ``weight (outputs, inputs)``, in float32: ``(rows, outputs)``.

    Args:
        x, weight: contiguous, on a GPU.
        format: of values in shared memory. ``deft16q`` pairs inputs ``2 i`` and ``2 i + 1``, the second without a mask.
        tile: outputs of a thread on each side.
        splits: in how many shares the sum is taken; by default as many as fill the GPU.

    Raises:
        UsageError: sizes, types or devices do not fit.
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
    shares = _shares(y, at)
    launchable = kernel("linear", format, tile, _quads(inputs, x, weight), x.device.type)
    launchable.launch(at.grid, (LANES * LANES,), [weight, x, shares, outputs, rows, inputs, at.share])
    return shares.sum(0) if at.splits > 1 else y


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
) -> Tensor:
    """A convolution of ``x (N, C, H, W)`` with ``weight (outputs, C, KH, KW)`` as a product over its windows.

    Nothing is unfolded in memory: a table tells where each tap lies. Arguments and errors as for `linear`; a word
    holds neighbours in the order of channels, rows and columns of the window.
    """
    _check(x, weight, 4)
    if x.shape[1] != weight.shape[1]:
        raise UsageError(f"x: expected (N, {weight.shape[1]}, H, W), got {sizes(x)}")
    (images, channels, height, width), outputs = x.shape, len(weight)
    depth = weight[0].numel() if outputs else 0
    geometry = Conv2dGeometry.of(weight.shape[2:], stride, padding, dilation)
    out = geometry.output_size(height, width)
    y = x.new_zeros(images, outputs, *out)
    if not (y.numel() and depth):
        return y
    at = plan(outputs, images * out[0] * out[1], depth, tile, splits)
    shares = _shares(y, at)
    taps = _taps(channels, height, width, geometry.kernel, geometry.dilation, x.device)
    launchable = kernel("convolution", format, tile, _quads(depth, weight), x.device.type)
    image = [channels, height, width, *out, *stride, *padding]
    launchable.launch(at.grid, (LANES * LANES,), [weight, x, taps, shares, outputs, images, depth, at.share, *image])
    return shares.sum(0) if at.splits > 1 else y


def through(x: Tensor, format: OnChip) -> Tensor:
    """The numbers that a product would read for ``x``, of which every ``values(format)`` neighbours share a word.

    Raises:
        UsageError: ``x`` is not one of whole words of float32.
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
    """Blocks of a product, and the values of the sum that each share takes."""

    grid: tuple[int, int, int]
    share: int

    @property
    def splits(self) -> int:
        """Shares of the sum."""
        return self.grid[2]


RESIDENT = {4: 4, 6: 2, 8: 2}
"""Blocks of a multiprocessor, by tile."""


def plan(outputs: int, rows: int, depth: int, tile: Tile, splits: int | None = None) -> Plan:
    """How a product is taken apart: in the fewest shares of the sum that keep multiprocessors busiest.

    Raises:
        UsageError: an unknown tile, or no shares.
    """
    if tile not in TILES:
        raise UsageError(f"tile: expected one of {', '.join(map(str, TILES))}, got {tile!r}")
    if splits is not None and splits < 1:
        raise UsageError(f"splits: expected at least 1, got {splits}")
    side, stages = LANES * tile, ceil(depth / DEPTH)
    tiles = ceil(rows / side) * ceil(outputs / side)
    if splits is None:
        places = MULTIPROCESSORS * RESIDENT[tile]
        most = min(stages // 8, 16) or 1
        # A share more costs a pass over the result, which a hundredth stands for.
        splits = min(range(1, most + 1), key=lambda s: (ceil(tiles * s / places) / s) * (1 + 0.01 * s))
    share = ceil(stages / splits) * DEPTH
    return Plan((ceil(rows / side), ceil(outputs / side), ceil(depth / share)), share)


@cache
def kernel(name: str, format: OnChip, tile: Tile, quads: bool, device: str) -> Launchable:
    """A kernel of the source, compiled when it is first launched; ``quads`` reads four values at once.

    Raises:
        UsageError: an unknown format.
        MissingError: the device is no GPU.
    """
    defined = macros(format, tile, quads)
    if device != "cuda":
        raise MissingError(f"fission on chip: expected tensors on a CUDA device, got {device}; move them there")
    return Kernel(SOURCE.read_text(encoding="utf-8"), name, macros=defined)


def macros(format: OnChip, tile: Tile, quads: bool) -> dict[str, int | str]:
    """What the source is compiled with.

    Raises:
        UsageError: an unknown format.
    """
    check_choice("format", format, ("float", *FORMATS))
    narrow = format not in _KINDS
    return {
        "TILE": tile,
        "FORMAT": _NARROW if narrow else _KINDS[format],
        "EXPONENT": exponent_bits(cast(Format, format)) if narrow else 5,
        "VECTOR": int(quads),
    }


def _check(x: Tensor, weight: Tensor, dims: int) -> None:
    for name, tensor in (("x", x), ("weight", weight)):
        if tensor.dim() != dims or tensor.dtype != torch.float32:
            raise UsageError(f"{name}: expected float32 of {dims} dimensions, got {tensor.dtype} {sizes(tensor)}")
    if x.device != weight.device:
        raise UsageError(f"weight: expected it on {x.device} with x, got {weight.device}")


def _shares(y: Tensor, at: Plan) -> Tensor:
    return y.new_empty(at.splits, *y.shape) if at.splits > 1 else y


def _quads(depth: int, *tensors: Tensor) -> bool:
    """Whether four neighbours along the sum can be read at once."""
    return depth % 4 == 0 and all(tensor.data_ptr() % 16 == 0 for tensor in tensors)


@cache
def _taps(
    channels: int, height: int, width: int, kernel: tuple[int, int], dilation: tuple[int, int], device: torch.device
) -> Tensor:
    """For each value of the sum how far it lies from the window's corner, and by how many rows and columns.

    Whole stages long; what is beyond the window lies on no image.
    """
    channel, down, right = torch.meshgrid(*map(torch.arange, (channels, *kernel)), indexing="ij")
    down, right = down * dilation[0], right * dilation[1]
    if max(int(down.max()), int(right.max())) >= 2**15 or channels * height * width >= 2**31:
        raise UnsupportedError("fission on chip: expected windows and images whose places fit 15 and 31 bits")
    away = (channel * height + down) * width + right
    taps = torch.stack([away.flatten(), (down << 16 | right).flatten()], 1)
    missing = -len(taps) % DEPTH
    beyond = torch.tensor([[0, 0x7FFF << 16]]).expand(missing, 2)
    return torch.cat([taps, beyond]).int().contiguous().to(device)
