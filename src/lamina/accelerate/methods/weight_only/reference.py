"""The definition of the layers: the weights as they are read, in an ordinary product."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.methods.weight_only.formats import Packed, unpack


def linear(x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    """``x W^T + b``: ``x (..., inputs)`` of any float type to ``(..., outputs)``."""
    return F.linear(x, unpack(packed).to(x.dtype), bias)
