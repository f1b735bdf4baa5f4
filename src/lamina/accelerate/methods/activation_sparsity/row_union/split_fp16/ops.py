"""Float32 operands split into float16 terms, for products on fp16 tensor cores."""

import torch
from torch import Tensor

from lamina.accelerate.common.split_fp16 import kernels
from lamina.accelerate.common.tiling import clamp, next_power_of_2
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.triton_ops import index_type, precision

_BLOCK = 4096


def split_terms(x: Tensor, single: bool = False) -> tuple[int, int]:
    """The number of float16 terms of activations and of weights.

    0 for 16-bit types, which are multiplied as they are; 1 where TF32 is allowed; else 2, which keep float32 accuracy.
    ``single`` limits activations to one.
    """
    if x.dtype != torch.float32:
        return 0, 0
    return (1, 1) if precision() == "tf32" else (1 if single else 2, 2)


def split_weight(at: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """``at (rows, M)`` or ``(taps, C, M)`` of any strides as contiguous ``(terms, rows, M)``, and its partial amax.

    Without terms it is one tensor in its own dtype.
    """
    if not terms and at.is_contiguous():
        return at.flatten(0, -2)[None], at.new_empty(1)
    taps, rows, outputs = (1, *at.shape) if at.dim() == 2 else at.shape
    partials = clamp(1, next_power_of_2(-(-at.numel() // _BLOCK)), kernels.MAX_PARTIALS)
    amax = at.new_empty(partials, dtype=torch.float32)
    split = at.new_empty((max(terms, 1), taps * rows, outputs), dtype=torch.float16 if terms else at.dtype)
    if not at.numel():
        return split, amax.zero_()
    if terms:
        dense = without_gaps(at)
        launch(kernels.amax_kernel, partials, at, dense, amax, at.numel(), BLOCK=_BLOCK, INDEX=index_type(dense))
    block_l, block_c = clamp(16, next_power_of_2(rows), 64), clamp(16, next_power_of_2(outputs), 64)
    tiles = -(-rows // block_l), -(-outputs // block_c)
    strides = at.stride(0) if taps > 1 else 0, at.stride(-1), at.stride(-2)
    launch(
        kernels.split_fp16_kernel, taps * tiles[0] * tiles[1], at,
        at, amax, split, rows, outputs, *tiles, *strides, at.numel(), TERMS=max(terms, 1),
        PARTIALS=partials if terms else 0, TARGET_EXPONENT=kernels.TARGET_EXPONENT, BLOCK_L=block_l, BLOCK_C=block_c,
        INDEX=index_type(at, split),
    )  # fmt: skip
    return split, amax


def without_gaps(x: Tensor) -> Tensor:
    """The elements of ``x`` contiguous in memory, in any dimension order; a copy only if there are gaps."""
    order = sorted(range(x.dim()), key=lambda axis: -x.stride()[axis])
    return x.permute(order).contiguous()
