"""Products of few rows with 8-bit weights, memory-bound by the weights: a CUDA kernel for tensor cores."""

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
MAX_ROWS = 16
"""Rows of the input; for more, the Triton kernel is faster."""

_CODES = 16  # per load of a thread


def takes(x: Tensor, codes: Tensor, format: Format) -> bool:
    """Whether the kernel supports ``x (rows, inputs)`` and these weights: bfloat16, few rows, vectorized loads."""
    return (
        x.is_cuda
        and codes.dtype == torch.uint8
        and format[0] == "e"
        and x.dtype == torch.bfloat16
        and 0 < x.shape[0] <= MAX_ROWS
        and codes.numel() > 0
        and codes.shape[1] % _CODES == 0
        and torch.cuda.get_device_capability(x.device) >= (9, 0)  # bf16 multiplication
    )


def linear(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None, format: Format) -> Tensor:
    """``x W^T + b`` for operands that `takes` accepts: ``(rows, outputs)`` in bfloat16; deterministic."""
    (rows, inputs), outputs = x.shape, len(codes)
    x, codes = (_aligned(one.contiguous()) for one in (x, codes))
    y = x.new_empty(rows, outputs)
    shape = shape_of(outputs, inputs, rows)
    grid = ceil(outputs / (16 * shape.high * shape.tiles)), ceil(rows / shape.rows)
    lifted = _missing_exponent(format)
    offset = y if bias is None else bias.contiguous()
    args: Arguments = [codes, x, scale, offset, y, outputs, rows, inputs, 2.0 ** (lifted - lifted // 2)]
    kernel(format, shape, bias is not None).launch(grid, (shape.threads,), args, shape.shared)
    return y


@dataclass(frozen=True)
class Shape:
    """A thread block: ``tiles`` tiles of ``high * 16`` outputs, each with K split over ``warps`` warps.

    ``rows`` of the input are 8 or 16; ``stages`` is the number of steps in shared memory, 0 for loads without
    pipelining.
    """

    high: int
    tiles: int
    warps: int
    rows: int
    stages: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps * self.tiles

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory: operands, overwritten by partial sums."""
        sums = 4 * self.warps * self.rows * (16 * self.high * self.tiles + 4)
        return max(self.stages * (2 * self.high + self.rows // 4) * 16 * self.threads, sums) if self.stages else 0


def shape_of(outputs: int, inputs: int, rows: int) -> Shape:
    """The fastest shape, as measured on an H200.

    Pipelined loads pay with many inputs or rows. With few outputs, K is split over more warps and rows over blocks.
    """
    if outputs < 2048:
        return Shape(1, 1, 32, 8, 0)
    if rows <= 8 and inputs < 8192:
        return Shape(1, 2, 16, 8, 0)
    return Shape(2, 1, 16, 8 if rows <= 8 else 16, 3)


@cache
def kernel(format: Format, shape: Shape, biased: bool) -> Kernel:
    """The kernel of a shape. Inputs are multiplied by half of the missing power of two, accumulators by the rest."""
    macros: Macros = {
        "EXPONENT": exponent_bits(format),
        "HIGH": shape.high,
        "TILES": shape.tiles,
        "WARPS": shape.warps,
        "ROWS": shape.rows,
        "STAGES": shape.stages,
        "LIFT": (127 + _missing_exponent(format) // 2) << 7,
        "BIAS": int(biased),
    }
    return Kernel(SOURCE.read_text(encoding="utf-8"), "linear", macros=macros)


def _missing_exponent(format: Format) -> int:
    """The power of two by which the shifted bits of a code are too small a bfloat16."""
    return 127 - exponent_bias(exponent_bits(format))


def _aligned(tensor: Tensor) -> Tensor:
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()
