"""What the kernels compute, in plain PyTorch, for any float dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.spec.geometry import Pair


def convolve(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """``y (N, K, OH, OW)`` of ``x (N, C, H, W)`` and ``weight (K, C, R, S)``."""
    return torch.nn.functional.conv2d(x, weight, stride=stride, padding=padding)


def weight_gradient(x: Tensor, gy: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    """``(K, C, R, S)``: the sum over images and pixels of ``gy (N, K, OH, OW)`` times the window of ``x`` there."""
    weight = x.new_empty(gy.shape[1], x.shape[1], *kernel)
    gradients = torch.ops.aten.convolution_backward(
        gy, x, weight, None, stride, padding, (1, 1), False, (0, 0), 1, (False, True, False)
    )
    gradient: Tensor = gradients[1]
    return gradient
