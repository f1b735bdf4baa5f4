"""Products of few rows with 8-bit weights, which are bound by reading the weights: a CUDA kernel for tensor cores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path

import torch
from torch import Tensor

from lamina.accelerate.methods.weight_only.config import Format
from lamina.accelerate.methods.weight_only.formats import bias as exponent_bias
from lamina.accelerate.methods.weight_only.formats import exponent_bits
from lamina.accelerate.runtime.nvrtc import Arguments, Kernel, Macros

SOURCE = Path(__file__).with_name("stream.cu")
MOST_ROWS = 16
"""Of the input; more of them are better shared out between blocks."""

_CODES = 16  # that a thread reads at once


def takes(x: Tensor, codes: Tensor, format: Format) -> bool:
    """Whether the kernel computes ``x (rows, inputs)`` with these weights: bfloat16, few rows, whole reads."""
    return (
        x.is_cuda
        and codes.dtype == torch.uint8
        and format[0] == "e"
        and x.dtype == torch.bfloat16
        and 0 < x.shape[0] <= MOST_ROWS
        and codes.numel() > 0
        and codes.shape[1] % _CODES == 0
        and torch.cuda.get_device_capability(x.device) >= (9, 0)  # the product of two bfloat16
    )


def linear(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None, format: Format) -> Tensor:
    """``x W^T + b`` of what `takes` accepts: ``(rows, outputs)`` in bfloat16, the sum in one order."""
    (rows, inputs), outputs = x.shape, len(codes)
    x, codes = (_aligned(one.contiguous()) for one in (x, codes))
    y = x.new_empty(rows, outputs)
    shape = shape_of(outputs, inputs, rows)
    grid = ceil(outputs / (16 * shape.high * shape.tiles)), ceil(rows / shape.rows)
    lifted = _too_small(format)
    offset = y if bias is None else bias.contiguous()
    args: Arguments = [codes, x, scale, offset, y, outputs, rows, inputs, 2.0 ** (lifted - lifted // 2)]
    kernel(format, shape, bias is not None).launch(grid, (shape.threads,), args, shape.shared)
    return y


@dataclass(frozen=True)
class Shape:
    """Of a block: ``tiles`` of ``high`` times 16 outputs, of each of which ``warps`` share the sums.

    ``rows`` are the input's, 8 or 16; ``stages``, steps whose operands are in shared memory, or 0 where each is loaded
    as it is used.
    """

    high: int
    tiles: int
    warps: int
    rows: int
    stages: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.warps * self.tiles

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory: operands, which sums take the place of."""
        sums = 4 * self.warps * self.rows * (16 * self.high * self.tiles + 4)
        return max(self.stages * (2 * self.high + self.rows // 4) * 16 * self.threads, sums) if self.stages else 0


def shape_of(outputs: int, inputs: int, rows: int) -> Shape:
    """The fastest as measured on an H200.

    Long sums and many rows pay to come ahead of their use. Few outputs leave room for more warps, and rows go to blocks
    of their own.
    """
    if outputs < 2048:
        return Shape(1, 1, 32, 8, 0)
    if rows <= 8 and inputs < 8192:
        return Shape(1, 2, 16, 8, 0)
    return Shape(2, 1, 16, 8 if rows <= 8 else 16, 3)


@cache
def kernel(format: Format, shape: Shape, biased: bool) -> Kernel:
    """The kernel of a shape. Inputs make good for half of what codes are too small by, sums for the rest."""
    macros: Macros = {
        "EXPONENT": exponent_bits(format),
        "HIGH": shape.high,
        "TILES": shape.tiles,
        "WARPS": shape.warps,
        "ROWS": shape.rows,
        "STAGES": shape.stages,
        "LIFT": (127 + _too_small(format) // 2) << 7,
        "BIAS": int(biased),
    }
    return Kernel(SOURCE.read_text(encoding="utf-8"), "linear", macros=macros)


def _too_small(format: Format) -> int:
    """The power of two by which the bits of a code, moved, are too small a bfloat16."""
    return 127 - exponent_bias(exponent_bits(format))


def _aligned(tensor: Tensor) -> Tensor:
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()
