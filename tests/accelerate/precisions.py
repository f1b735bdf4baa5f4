"""What tests compute in on a GPU, and what tensor cores make of it."""

import torch
from torch import Tensor

TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def cut(x: Tensor) -> Tensor:
    """Float32 numbers as tensor cores read them for TF32: the ten first bits of the mantissa, the rest cut off."""
    return (x.view(torch.int32) & -(1 << 13)).view(torch.float32)
