"""Bitmaps by the kernels: the same as `bitmap` makes them, bit by bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lamina.accelerate.ops import launch
from lamina.accelerate.sparsity.saved import bitmap, kernels
from lamina.accelerate.sparsity.saved.bitmap import BLOCK, Bitmap, Form, Mask
from lamina.errors import LaminaError

FLOATS = {torch.float64: tl.float64, torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
ODD = int(kernels.ODD.value)
PENDING = -1
"""What stands in the host's memory until the device has written a number there."""

_free: list[Tensor] = []


@dataclass(frozen=True)
class Counted:
    """Bits of a tensor and how many non-zeros each block has, behind a 0; see `kernels.bits_kernel`."""

    bits: Tensor
    counts: Tensor


def counted(x: Tensor, *, positive: bool = False) -> Counted:
    """The bits of what is not zero, or with ``positive`` of what is not at most zero; does not wait."""
    bits = x.new_empty(-(-x.numel() // 8), dtype=torch.uint8)
    counts = x.new_empty(1 + triton.cdiv(x.numel(), BLOCK), dtype=torch.int64)
    if not x.numel():
        counts.zero_()
    number = FLOATS[x.dtype] if positive else None
    _launch(kernels.bits_kernel, x.numel(), x, bitmap.stored(x), bits, counts, x.numel(), FLOAT=number)
    return Counted(bits, counts)


def mask(x: Tensor) -> Mask:
    """`bitmap.mask`."""
    return Mask(Form.of(x), counted(x, positive=True).bits)


def unmask(held: Mask) -> Tensor:
    """`bitmap.unmask`."""
    y = held.form.empty()
    _launch(
        kernels.unpack_kernel, y.numel(), y, held.bits, held.bits, held.bits, bitmap.flat(y), y.numel(), VALUES=False
    )
    return y


class Packing:
    """A tensor on its way into a bitmap: the device is asked how many non-zeros it has, and tells later."""

    def __init__(self, x: Tensor, found: Counted) -> None:
        self._found = found
        self._ends = found.counts.cumsum(0)
        self._on_gpu = x.is_cuda
        self._stream = torch.cuda.current_stream(x.device) if x.is_cuda else None
        self._word = _free.pop() if _free and x.is_cuda else _host_word(x.is_cuda)
        self._word.fill_(PENDING)
        self._word.copy_(self._ends[-1:], non_blocking=True)

    def nonzeros(self) -> int | None:
        """How many non-zeros there are; waits. None if the bits are others than theirs.

        Raises:
            LaminaError: the device finished without telling.
        """
        while (told := int(self._word.item())) == PENDING:
            # A query tells of errors of the device, which would otherwise be waited for in vain.
            if self._stream is not None and self._stream.query() and self._word.item() == PENDING:
                raise LaminaError(
                    "saved activations: the device finished, but did not tell how many non-zeros it found"
                )
        if self._on_gpu:
            _free.append(self._word)
        return told if told < ODD else None

    def bitmap(self, x: Tensor, nonzeros: int) -> Bitmap:
        """The bitmap of the same tensor."""
        elements = bitmap.stored(x)
        values, offsets = elements.new_empty(nonzeros), self._ends[:-1]
        _launch(kernels.pack_kernel, x.numel(), x, elements, offsets, values, x.numel())
        return Bitmap(Form.of(x), self._found.bits, offsets, values)


def pack(x: Tensor) -> Bitmap:
    """`bitmap.pack`; waits for the device."""
    packing = Packing(x, counted(x))
    return packing.bitmap(x, packing.nonzeros() or 0)


def unpack(held: Bitmap) -> Tensor:
    """`bitmap.unpack`."""
    y = held.form.empty()
    elements = bitmap.stored(y)
    _launch(kernels.unpack_kernel, y.numel(), y, held.bits, held.offsets, held.values, elements, y.numel(), VALUES=True)
    return y


def _host_word(pinned: bool) -> Tensor:
    return torch.empty(1, dtype=torch.int64, device="cpu", pin_memory=pinned)


def _launch(kernel: Any, size: int, tensor: Tensor, *args: Any, **switches: Any) -> None:
    index = tl.int64 if size >= 2**31 else tl.int32
    launch(kernel, triton.cdiv(size, BLOCK), tensor, *args, BLOCK=BLOCK, INDEX=index, **switches)
