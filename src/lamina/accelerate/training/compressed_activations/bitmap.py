"""A tensor as one bit for each element and the elements that are not zero; and as the bits alone.

Elements count as they are stored: negative zero is no zero here, so that what comes back is the same bit by bit. Eight
elements share a byte, the first in its lowest bit. They are taken in the order of memory, gaps left out, so that the
tensor comes back in its own strides.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 4096
"""Elements whose non-zeros are found from one number: where the first of them stands."""

STORED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers as wide as an element, in bytes."""

GATHER = sum(1 << 7 * place for place in range(1, 9))
"""Times a word of eight bytes that are 0 or 1: its highest byte has byte ``i`` as bit ``i``, for no two sums meet."""
REPEAT = sum(1 << 8 * place for place in range(8))
"""Times a byte: eight of it."""
SELECT = sum(1 << 9 * place for place in range(8)) - (1 << 64)
"""Of eight bytes, bit ``i`` of byte ``i``; as a signed word."""


class Form(NamedTuple):
    """What a tensor was like: its sizes, strides and type."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, x: Tensor) -> Form:
        """A tensor's, made contiguous if its memory has gaps."""
        strides = x.stride() if gapless(x) else torch.empty(x.shape, device="meta").stride()
        return cls(x.shape, strides, x.dtype, x.device)

    def empty(self) -> Tensor:
        """Memory for such a tensor."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


class Bitmap(NamedTuple):
    """Which elements are not zero, where each block's first one stands, and their values, as integers.

    ``values`` may have room to spare; the bits may be those of a ReLU, which holds them already.
    """

    form: Form
    bits: Tensor
    offsets: Tensor
    values: Tensor
    shares_bits: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of memory held of its own."""
        own = (self.offsets, self.values) if self.shares_bits else (self.bits, self.offsets, self.values)
        return sum(tensor.numel() * tensor.itemsize for tensor in own)


def gapless(x: Tensor) -> bool:
    """Whether elements fill their memory, in any order, each once."""
    if x.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def flat(x: Tensor) -> Tensor:
    """The elements in the order of memory; a view unless there are gaps."""
    return x.as_strided((x.numel(),), (1,)) if gapless(x) else x.contiguous().view(-1)


def stored(x: Tensor) -> Tensor:
    """`flat`, as integers."""
    return flat(x).view(STORED[x.itemsize])


def mask(x: Tensor) -> Tensor:
    """The bits of what a ReLU lets through, from what it gave: all but elements of at most zero; NaN is let through."""
    return _packed(~(flat(x) <= 0))


def masked(x: Tensor, bits: Tensor) -> Tensor:
    """Elements of a tensor without gaps whose bit is set, in the order of memory, and zero for the others."""
    y = torch.empty_like(x)
    flat(y).copy_(flat(x)).masked_fill_(~_unpacked(bits, x.numel()), 0)
    return y


def pack(x: Tensor) -> Bitmap:
    """A tensor without its zeros; waits for the device, which alone knows how many they are."""
    elements = stored(x)
    present = elements != 0
    padded = torch.nn.functional.pad(present, (0, -len(present) % BLOCK)).view(-1, BLOCK)
    counts = padded.sum(1)
    return Bitmap(Form.of(x), _packed(present), counts.cumsum(0) - counts, elements.masked_select(present))


def unpack(held: Bitmap) -> Tensor:
    """The same tensor, bit by bit."""
    y = held.form.empty()
    elements = stored(y)
    elements.zero_().masked_scatter_(_unpacked(held.bits, y.numel()), held.values)
    return y


def _packed(present: Tensor) -> Tensor:
    eights = torch.nn.functional.pad(present, (0, -len(present) % 8)).view(torch.int64)
    return (eights * GATHER >> 56).to(torch.uint8)


def _unpacked(bits: Tensor, size: int) -> Tensor:
    return (bits.to(torch.int64) * REPEAT & SELECT).view(torch.uint8)[:size] != 0
