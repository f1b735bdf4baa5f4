"""The definition of the layers: a dense product with the dequantized weights."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.methods.weight_only.formats import Packed, unpack


def linear(x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    """``x W^T + b``: ``x (..., inputs)`` of any floating-point dtype to ``(..., outputs)``."""
    return F.linear(x, unpack(packed).to(x.dtype), bias)
