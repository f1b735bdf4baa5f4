"""What tests compute in on a GPU, and what tensor cores make of it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def cut(x: Tensor) -> Tensor:
    """Float32 numbers as tensor cores read them for TF32: the ten first bits of the mantissa, the rest cut off."""
    return (x.view(torch.int32) & -(1 << 13)).view(torch.float32)


class Cut(torch.autograd.Function):
    """`cut` on the way there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return cut(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:  # type: ignore[override]
        return slope


class CutBack(torch.autograd.Function):
    """`cut` on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:  # type: ignore[override]
        return cut(slope)


def on_tensor_cores(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """A ``product`` of float32 numbers in TF32, forward and back, also of sizes for which the library does without."""
    return lambda x, w: CutBack.apply(product(Cut.apply(x).double(), Cut.apply(w).double()).float())
