"""What tests compute in on a GPU, and what tensor cores make of it."""

from collections.abc import Callable

import torch
from torch import Tensor

TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def cut(x: Tensor) -> Tensor:
    """Float32 numbers as tensor cores read them for TF32: the ten first bits of the mantissa, the rest cut off."""
    return (x.view(torch.int32) & -(1 << 13)).view(torch.float32)


def on_tensor_cores(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """A ``product`` of float32 numbers in TF32, forward and back, also of sizes for which the library does without."""

    def cut_product(*operands: Tensor) -> Tensor:
        wide = [x.double() + (cut(x.detach()).double() - x.detach().double()) for x in operands]
        y = product(*wide).float()
        y.register_hook(cut)
        return y

    return cut_product
