"""Linear maps and convolutions by the dissertation's kernels, with their gradients."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.papers.circulant_ladder.rungs import IMPLS, Kernels, Pass, kernels
from lamina.errors import UnsupportedError

_compiled = cache(kernels)


def kernels_for(x: Tensor) -> Kernels | None:
    """The kernels that compute with ``x``; None where the steps run in PyTorch operations: on other devices."""
    return _compiled() if x.device.type == "cuda" else None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def linear(x: Tensor, weight: Tensor, out_features: int, impl: str) -> Tensor:
    """``x W^T`` of ``x (rows, inputs)`` and first columns ``weight (p, q, k)``: ``(rows, out_features)``.

    Args:
        x: float32; on other devices than a GPU float64 too.
        weight: of the same dtype.
        out_features: at most ``p k``.
        impl: a name of `IMPLS`.

    Raises:
        UnsupportedError: another dtype.
        UsageError: more rows than a grid has thread blocks.
    """
    wanted = (torch.float32,) if x.device.type == "cuda" else (torch.float32, torch.float64)
    if x.dtype not in wanted:
        names = " or ".join(str(dtype).removeprefix("torch.") for dtype in wanted)
        raise UnsupportedError(f"impl={impl}: expected {names}, as in the paper, got {x.dtype}")
    q, k = weight.shape[-2:]
    blocks = F.pad(x, (0, q * k - x.shape[1])).view(len(x), q, k)
    if not len(x):
        return x.new_zeros(0, out_features) + 0 * (blocks.sum() + weight.sum())
    y: Tensor = _Layer.apply(blocks, weight, impl)  # type: ignore[no-untyped-call]
    return y.flatten(1)[:, :out_features]


def conv(x: Tensor, weight: Tensor, out_channels: int, window: Conv2dProblem, impl: str) -> Tensor:
    """A convolution of ``x (N, C, H, W)`` with ``weight (p, KH, KW, q, k)`` as im2col and `linear`.

    A row of the gathered matrix has all channels of each tap side by side, padded to whole blocks.

    Raises:
        UnsupportedError: it has groups, or `linear` does not support the dtype.
        UsageError: more pixels than a grid has thread blocks.
    """
    if window.groups > 1:
        raise UnsupportedError(f"impl={impl}: groups={window.groups} are not supported; use impl=kernel")
    (batch, channels, *_), (taps, q, k) = x.shape, weight.flatten(1, 2).shape[1:]
    kernel = weight.shape[1:3]
    dilation = window.dilation_height, window.dilation_width
    padding, stride = (window.padding_height, window.padding_width), (window.stride_height, window.stride_width)
    columns = F.unfold(x, kernel, dilation, padding, stride).view(batch, channels, taps, -1).permute(0, 3, 2, 1)
    rows = F.pad(columns, (0, q * k - channels)).reshape(-1, taps * q * k)
    y = linear(rows, weight.flatten(1, 3), out_channels, impl)
    images: Tensor = y.view(batch, window.out_height, window.out_width, out_channels).permute(0, 3, 1, 2)
    return images if x.stride(1) == 1 and channels > 1 else images.contiguous()


class _Layer(torch.autograd.Function):
    """``x (n, q, k)`` and ``w (p, q, k)`` to ``y (n, p, k)``; the backward pass uses what the version keeps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, impl: str) -> Tensor:
        one = Pass(IMPLS[impl], kernels_for(x), {"x": x.contiguous(), "w": w.contiguous()})
        y = one.run("forward")
        ctx.impl, ctx.kept = impl, (*one.kept,)
        ctx.save_for_backward(*one.tensors.values(), *one.kept.values())
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, w, *kept = ctx.saved_tensors
        tensors = {"x": x, "w": w, "dy": dy.contiguous()}
        one = Pass(IMPLS[ctx.impl], kernels_for(x), tensors, kept=dict(zip(ctx.kept, kept, strict=True)))
        dx = one.run("backward_data") if ctx.needs_input_grad[0] else None
        dw = one.run("backward_weight") if ctx.needs_input_grad[1] else None
        return dx, dw, None
