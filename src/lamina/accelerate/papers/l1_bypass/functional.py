"""Convolutions in fp32 with loads through L1, or past it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lamina.errors import UsageError
from lamina.spec.geometry import Pair


def refusal(shape: Sequence[int], padding: Sequence[int] | str, dilation: Sequence[int], groups: int) -> str:
    """Why a convolution of these weights ``(K, C/groups, R, S)`` is not supported; empty if it is."""
    if len(shape) != 4:
        return f"expected a 2d convolution, got {len(shape) - 2} dimensions"
    if isinstance(padding, str):
        return f"padding {padding!r} is not supported"
    if groups != 1 or tuple(dilation) != (1, 1):
        return f"groups {groups} and dilation {tuple(dilation)} are not supported"
    return ""


def convolve(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, *, l1_bypass: bool = False) -> Tensor:
    """``y (N, K, OH, OW)`` of ``x (N, C, H, W)`` and ``weight (K, C, R, S)``, by an implicit GEMM.

    Args:
        x, weight: float32, on a GPU.
        l1_bypass: whether loads bypass the L1 cache.

    Raises:
        UsageError: another dtype, or sizes that do not fit.
    """
    if x.dim() != 4 or weight.dim() != 4 or x.shape[1] != weight.shape[1]:
        raise UsageError(f"expected x (N, C, H, W) and weight (K, C, R, S), got {list(x.shape)}, {list(weight.shape)}")
    from lamina.accelerate.papers.l1_bypass import ops

    return ops.run_forward(_plain(x), _plain(weight), stride, padding, l1_bypass)


def weight_gradient(
    x: Tensor, gy: Tensor, kernel: Pair, stride: Pair, padding: Pair, *, l1_bypass: bool = False
) -> Tensor:
    """``(K, C, R, S)`` of ``x (N, C, H, W)`` and the gradient ``gy (N, K, OH, OW)``; otherwise as `convolve`."""
    if x.dim() != 4 or gy.dim() != 4 or x.shape[0] != gy.shape[0]:
        raise UsageError(f"expected x (N, C, H, W) and gy (N, K, OH, OW), got {list(x.shape)}, {list(gy.shape)}")
    from lamina.accelerate.papers.l1_bypass import ops

    return ops.run_weight_gradient(_plain(x), _plain(gy), kernel, stride, padding, l1_bypass)


def _plain(x: Tensor) -> Tensor:
    if x.dtype != torch.float32:
        raise UsageError(f"expected float32, got {x.dtype}")
    return x.detach().contiguous()
