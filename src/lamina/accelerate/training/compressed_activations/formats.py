"""The formats in which tensors are saved, besides bitmaps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.accelerate.common.operands import is_plain
from lamina.accelerate.methods.activation_sparsity.ellpack.format import EllpackDib
from lamina.accelerate.training.compressed_activations.bitmap import Bitmap, TensorLayout
from lamina.errors import UsageError


@dataclass(frozen=True)
class Ellpack:
    """A map in ELLPACK-DIB, one row per channel."""

    layout: TensorLayout
    sparse: EllpackDib

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.sparse.nbytes


@dataclass(frozen=True)
class Shape:
    """A tensor of which the backward pass reads sizes only, such as the input of a pooling; its elements are lost."""

    layout: TensorLayout

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return 0


@dataclass(frozen=True)
class Narrow:
    """Integers in a narrower dtype."""

    layout: TensorLayout
    values: Tensor

    @classmethod
    def of(cls, x: Tensor, limit: int) -> Narrow:
        """Integers in ``[0, limit)``."""
        layout = TensorLayout.of(x)
        dtype = torch.uint16 if limit <= 1 << 16 else torch.int32 if limit <= 1 << 31 else torch.int64
        return cls(layout, torch.empty_strided(layout.shape, layout.strides, dtype=dtype, device=x.device).copy_(x))

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.values.numel() * self.values.itemsize

    def get(self) -> Tensor:
        """The integers in their original dtype."""
        return self.layout.empty().copy_(self.values)


@dataclass(eq=False, slots=True)
class Kept:
    """An uncompressed tensor; with saved-tensor hooks autograd does not check that it is unchanged, so this does."""

    tensor: Tensor
    version: int

    @classmethod
    def of(cls, x: Tensor) -> Kept:
        """A tensor, detached, since its graph would otherwise reference itself."""
        return cls(x if x.grad_fn is None else x.detach(), x._version)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return memory(self.tensor)

    @property
    def is_unchanged(self) -> bool:
        """Whether the tensor has not been changed in place."""
        return self.tensor._version == self.version

    def get(self) -> Tensor:
        """The tensor.

        Raises:
            UsageError: it has been changed in place.
        """
        if not self.is_unchanged:
            raise UsageError(
                f"backward: expected a saved tensor {tuple(self.tensor.shape)} at version {self.version}, "
                f"got version {self.tensor._version}; do not change it in place between the passes"
            )
        return self.tensor


Packed = Bitmap | Ellpack | Shape | Narrow | Kept


def has_memory(x: object) -> bool:
    """Whether it is a plain tensor with memory."""
    return is_plain(x) and not x.is_meta  # type: ignore[attr-defined]


def memory(x: Tensor) -> int:
    """Bytes of the storage that a tensor keeps allocated."""
    return x.untyped_storage().nbytes() if has_memory(x) else 0
