"""A tensor as one bit per element and its non-zeros; and the bits alone.

Elements are compared as integers: negative zero counts as a non-zero, so that tensors are restored bit by bit. Eight
elements share a byte, the first in its lowest bit. Elements are in memory order, so that the tensor is restored with
its strides.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 4096
"""Elements of a block, whose values are located by one offset."""

INTEGER_DTYPES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer dtype of an element size in bytes."""

GATHER = sum(1 << 7 * i for i in range(1, 9))
"""Times a word of eight bytes of 0 or 1: the product's highest byte has byte ``i`` as bit ``i``, without carries."""
REPEAT = sum(1 << 8 * i for i in range(8))
"""Times a byte: the byte, eight times."""
SELECT = sum(1 << 9 * i for i in range(8)) - (1 << 64)
"""Mask of bit ``i`` of byte ``i``, as a signed 64-bit integer."""


class TensorLayout(NamedTuple):
    """Sizes, strides, dtype and device of a tensor."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, x: Tensor) -> TensorLayout:
        """The layout of a tensor; contiguous if it is not dense in memory."""
        strides = x.stride() if is_dense_in_memory(x) else torch.empty(x.shape, device="meta").stride()
        return cls(x.shape, strides, x.dtype, x.device)

    def empty(self) -> Tensor:
        """An uninitialized tensor of this layout."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


class Bitmap(NamedTuple):
    """A compressed tensor.

    Attributes:
        layout: of the tensor.
        bits: uint8, one bit per element, set for non-zeros.
        offsets: int64, the index of each block's first value.
        values: the non-zeros, as integers; it may be longer than their number.
        shares_bits: whether ``bits`` are saved by a ReLU as well.
    """

    layout: TensorLayout
    bits: Tensor
    offsets: Tensor
    values: Tensor
    shares_bits: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of memory, without shared bits."""
        own = (self.offsets, self.values) if self.shares_bits else (self.bits, self.offsets, self.values)
        return sum(tensor.numel() * tensor.itemsize for tensor in own)


def is_dense_in_memory(x: Tensor) -> bool:
    """Whether a tensor is non-overlapping and dense, in any dimension order."""
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
    """The elements in memory order; a view if the tensor is dense."""
    return x.as_strided((x.numel(),), (1,)) if is_dense_in_memory(x) else x.contiguous().view(-1)


def stored(x: Tensor) -> Tensor:
    """The elements in memory order, as integers."""
    return flat(x).view(INTEGER_DTYPES[x.itemsize])


def mask(x: Tensor) -> Tensor:
    """The bits of a ReLU from its output: set for elements above zero and for NaN."""
    return _packed(~(flat(x) <= 0))


def masked(x: Tensor, bits: Tensor) -> Tensor:
    """The elements of a dense tensor whose bit is set, in memory order, and zero for the others."""
    y = torch.empty_like(x)
    flat(y).copy_(flat(x)).masked_fill_(~_unpacked(bits, x.numel()), 0)
    return y


def pack(x: Tensor) -> Bitmap:
    """The bitmap of a tensor; synchronizes to read the number of non-zeros."""
    elements = stored(x)
    present = elements != 0
    padded = torch.nn.functional.pad(present, (0, -len(present) % BLOCK)).view(-1, BLOCK)
    counts = padded.sum(1)
    return Bitmap(TensorLayout.of(x), _packed(present), counts.cumsum(0) - counts, elements.masked_select(present))


def unpack(held: Bitmap) -> Tensor:
    """The tensor, bit by bit."""
    y = held.layout.empty()
    elements = stored(y)
    elements.zero_().masked_scatter_(_unpacked(held.bits, y.numel()), held.values)
    return y


def _packed(present: Tensor) -> Tensor:
    eights = torch.nn.functional.pad(present, (0, -len(present) % 8)).view(torch.int64)
    return (eights * GATHER >> 56).to(torch.uint8)


def _unpacked(bits: Tensor, size: int) -> Tensor:
    return (bits.to(torch.int64) * REPEAT & SELECT).view(torch.uint8)[:size] != 0
