"""What stands for a tensor that autograd saves, besides its bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.accelerate.common.operands import is_plain
from lamina.accelerate.methods.activation_sparsity.ellpack.format import EllpackDib
from lamina.accelerate.training.compressed_activations.bitmap import Bitmap, Form
from lamina.errors import UsageError


@dataclass(frozen=True)
class Ellpack:
    """An activation map as ELLPACK-DIB, a channel a row."""

    form: Form
    sparse: EllpackDib

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.sparse.nbytes


@dataclass(frozen=True)
class Shape:
    """A tensor of which only sizes are asked, as pooling asks of its input: its elements may come back as any."""

    form: Form

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return 0


@dataclass(frozen=True)
class Narrow:
    """Whole numbers in a type of fewer bytes."""

    form: Form
    numbers: Tensor

    @classmethod
    def of(cls, x: Tensor, limit: int) -> Narrow:
        """Numbers from 0 and below ``limit``."""
        form = Form.of(x)
        kind = torch.uint16 if limit <= 1 << 16 else torch.int32 if limit <= 1 << 31 else torch.int64
        return cls(form, torch.empty_strided(form.shape, form.strides, dtype=kind, device=x.device).copy_(x))

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.numbers.numel() * self.numbers.itemsize

    def get(self) -> Tensor:
        """The numbers in their own type."""
        return self.form.empty().copy_(self.numbers)


@dataclass(eq=False, slots=True)
class Kept:
    """A tensor as it is; autograd itself does not see that it was changed in place once hooks have it."""

    tensor: Tensor
    version: int

    @classmethod
    def of(cls, x: Tensor) -> Kept:
        """A tensor, without its graph, which would hold itself by it."""
        return cls(x if x.grad_fn is None else x.detach(), x._version)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return memory(self.tensor)

    @property
    def is_as_it_was(self) -> bool:
        """Whether the tensor was not changed in place meanwhile."""
        return self.tensor._version == self.version

    def get(self) -> Tensor:
        """The tensor.

        Raises:
            UsageError: it is no longer what was saved.
        """
        if not self.is_as_it_was:
            raise UsageError(
                f"backward: expected a saved tensor {tuple(self.tensor.shape)} as it was at version {self.version}, "
                f"got version {self.tensor._version}; do not change it in place between the passes"
            )
        return self.tensor


Packed = Bitmap | Ellpack | Shape | Narrow | Kept


def has_memory(x: object) -> bool:
    """Whether it is a plain tensor, and not one of sizes alone."""
    return is_plain(x) and not x.is_meta  # type: ignore[attr-defined]


def memory(x: Tensor) -> int:
    """Bytes that stay allocated for as long as a tensor is held."""
    return x.untyped_storage().nbytes() if has_memory(x) else 0
