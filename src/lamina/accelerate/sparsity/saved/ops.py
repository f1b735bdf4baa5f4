"""Bitmaps by the kernels: the same as `bitmap` makes them, bit by bit."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lamina.accelerate.sparsity.saved import bitmap, kernels
from lamina.accelerate.sparsity.saved.bitmap import BLOCK, Bitmap, Form, Mask


def mask(x: Tensor) -> Mask:
    """`bitmap.mask`."""
    elements = bitmap.flat(x)
    bits = x.new_empty(-(-x.numel() // 8), dtype=torch.uint8)
    _launch(kernels.bits_kernel, x.numel(), x, elements, bits, bits, x.numel(), POSITIVE=True)
    return Mask(Form.of(x), bits)


def unmask(held: Mask) -> Tensor:
    """`bitmap.unmask`."""
    y = held.form.empty()
    _launch(
        kernels.unpack_kernel, y.numel(), y, held.bits, held.bits, held.bits, bitmap.flat(y), y.numel(), VALUES=False
    )
    return y


def pack(x: Tensor) -> Bitmap:
    """`bitmap.pack`; waits for the device."""
    elements = bitmap.stored(x)
    bits = x.new_empty(-(-x.numel() // 8), dtype=torch.uint8)
    counts = x.new_empty(triton.cdiv(x.numel(), BLOCK), dtype=torch.int64)
    _launch(kernels.bits_kernel, x.numel(), x, elements, bits, counts, x.numel(), POSITIVE=False)
    ends = counts.cumsum(0)
    offsets = ends - counts
    values = elements.new_empty(int(ends[-1]) if len(ends) else 0)
    _launch(kernels.pack_kernel, x.numel(), x, elements, offsets, values, x.numel())
    return Bitmap(Form.of(x), bits, offsets, values)


def unpack(held: Bitmap) -> Tensor:
    """`bitmap.unpack`."""
    y = held.form.empty()
    elements = bitmap.stored(y)
    _launch(kernels.unpack_kernel, y.numel(), y, held.bits, held.offsets, held.values, elements, y.numel(), VALUES=True)
    return y


def _launch(kernel: Any, size: int, tensor: Tensor, *args: Any, **switches: Any) -> None:
    if size:
        index = tl.int64 if size >= 2**31 else tl.int32
        with torch.cuda.device_of(tensor):
            kernel[(triton.cdiv(size, BLOCK),)](*args, BLOCK=BLOCK, INDEX=index, **switches)
