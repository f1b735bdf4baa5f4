"""Operands as halves."""

import torch
from torch import Tensor

from lamina.accelerate.common.split_fp16 import kernels
from lamina.accelerate.common.tiling import clamp, next_power_of_2
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.triton_ops import index_type, precision


def parts_for(x: Tensor, one: bool = False) -> tuple[int, int]:
    """Halves of activations, ``one`` at most if so wanted, and of weights: none of 16 bits, two where float32 keeps
    its accuracy."""
    if x.dtype != torch.float32:
        return 0, 0
    return (1, 1) if precision() == "tf32" else (1 if one else 2, 2)


def weights(at: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    """``at (rows, M)``, or ``(taps, C, M)``, of any strides side by side as ``(halves, rows, M)``, and its peaks."""
    if not parts and at.is_contiguous():
        return at.flatten(0, -2)[None], at.new_empty(1)
    taps, rows, outputs = (1, *at.shape) if at.dim() == 2 else at.shape
    peaks = at.new_empty(clamp(1, next_power_of_2(-(-at.numel() // 4096)), kernels.MAX_PARTIALS), dtype=torch.float32)
    near = at.new_empty((max(parts, 1), taps * rows, outputs), dtype=torch.float16 if parts else at.dtype)
    if not at.numel():
        return near, peaks.zero_()
    if parts:
        whole = gapless(at)
        launch(kernels.amax_kernel, peaks.numel(), at, whole, peaks, at.numel(), BLOCK=4096, INDEX=index_type(whole))
    tall, wide = clamp(16, next_power_of_2(rows), 64), clamp(16, next_power_of_2(outputs), 64)
    tiles = -(-rows // tall), -(-outputs // wide)
    steps = at.stride(0) if taps > 1 else 0, at.stride(-1), at.stride(-2)
    programs = taps * tiles[0] * tiles[1]
    launch(
        kernels.split_fp16_kernel, programs, at, at, peaks, near, rows, outputs, *tiles, *steps, at.numel(),
        PARTS=max(parts, 1), SHARES=peaks.numel() if parts else 0, TOP=kernels.TARGET_EXPONENT, BL=tall, BC=wide,
        INDEX=index_type(at, near),
    )  # fmt: skip
    return near, peaks


def gapless(x: Tensor) -> Tensor:
    """The same numbers in one piece of memory, in any order."""
    order = sorted(range(x.dim()), key=lambda axis: -x.stride()[axis])
    return x.permute(order).contiguous()
