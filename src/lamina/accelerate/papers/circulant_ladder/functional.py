"""Linear maps and convolutions by the dissertation's kernels, with their gradients."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo

from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.common.operands import transformed
from lamina.accelerate.papers.circulant_ladder.mapping import Phase
from lamina.accelerate.papers.circulant_ladder.rungs import IMPLS, Kernels, Pass, kernels
from lamina.errors import UnsupportedError

ROWS = 65535
"""Rows of one launch: a grid has no more blocks along its last axis. More rows are computed in parts."""

_compiled = cache(kernels)


def kernels_for(x: Tensor) -> Kernels | None:
    """The kernels that compute with ``x``; None where the steps run in PyTorch operations: on other devices."""
    return _compiled() if x.device.type == "cuda" else None


@_disable_dynamo  # torch.compiler.disable is the same, but imports the compiler first
def linear(x: Tensor, weight: Tensor, out_features: int, impl: str) -> Tensor:
    """``x W^T`` of ``x (rows, inputs)`` and first columns ``weight (p, q, k)``: ``(rows, out_features)``.

    Args:
        x: float32; on other devices than a GPU float64 too.
        weight: of the same dtype.
        out_features: at most ``p k``.
        impl: a name of `IMPLS`.

    Raises:
        UnsupportedError: another dtype, or a transform of ``torch.func``.
    """
    wanted = (torch.float32,) if x.device.type == "cuda" else (torch.float32, torch.float64)
    if x.dtype not in wanted:
        names = " or ".join(str(dtype).removeprefix("torch.") for dtype in wanted)
        raise UnsupportedError(f"impl={impl}: expected {names}, as in the paper, got {x.dtype}")
    q, k = weight.shape[-2:]
    blocks = _padded(x, q * k).reshape(len(x), q, k)
    if transformed():
        raise UnsupportedError(f"impl={impl}: transforms of torch.func have no rules for it; use impl=reference")
    if not len(x):
        return x.new_zeros(0, out_features) + 0 * (blocks.sum() + weight.sum())
    parts = [_layer(part, weight, impl) for part in blocks.split(ROWS)]
    y = parts[0] if len(parts) == 1 else torch.cat(parts)
    return y.flatten(1)[:, :out_features]


def conv(x: Tensor, weight: Tensor, out_channels: int, window: Conv2dProblem, impl: str) -> Tensor:
    """A convolution of ``x (N, C, H, W)`` with ``weight (p, KH, KW, q, k)`` as im2col and `linear`.

    A row of the gathered matrix has all channels of each tap side by side, padded to whole blocks.

    Raises:
        UnsupportedError: it has groups, or `linear` does not support the dtype.
    """
    if window.groups > 1:
        raise UnsupportedError(f"impl={impl}: groups={window.groups} are not supported; use impl=kernel")
    (batch, channels, *_), (taps, q, k) = x.shape, weight.flatten(1, 2).shape[1:]
    kernel = weight.shape[1:3]
    dilation = window.dilation_height, window.dilation_width
    padding, stride = (window.padding_height, window.padding_width), (window.stride_height, window.stride_width)
    columns = F.unfold(x, kernel, dilation, padding, stride).view(batch, channels, taps, -1).permute(0, 3, 2, 1)
    rows = _padded(columns, q * k).reshape(-1, taps * q * k)
    y = linear(rows, weight.flatten(1, 3), out_channels, impl)
    images: Tensor = y.view(batch, window.out_height, window.out_width, out_channels).permute(0, 3, 1, 2)
    return images if x.stride(1) == 1 and channels > 1 else images.contiguous()


def _padded(x: Tensor, width: int) -> Tensor:
    """``x`` with zeros up to a width of the last axis; `F.pad` copies even where there are none to add."""
    missing = width - x.shape[-1]
    return F.pad(x, (0, missing)) if missing else x


def _layer(x: Tensor, w: Tensor, impl: str) -> Tensor:
    """Blocks ``x (n, q, k)`` and ``w (p, q, k)`` to ``y (n, p, k)``.

    Each gradient has a node of its own, so that autograd computes those alone that are asked for.
    """
    one = Pass(IMPLS[impl], kernels_for(x), {"x": x.detach().contiguous(), "w": w.detach().contiguous()})
    y = one.run("forward")
    shared: dict[str, Tensor] = {}
    names, saved = (*one.tensors, *one.kept), (*one.tensors.values(), *one.kept.values())
    phases: tuple[tuple[Tensor, Phase], ...] = (x, "backward_data"), (w, "backward_weight")
    ends = [
        _Gradient.apply(leaf, phase, impl, y.shape, shared, names, *saved)  # type: ignore[no-untyped-call]
        for leaf, phase in phases
    ]
    joined: Tensor = _Join.apply(y, shared, *ends)  # type: ignore[no-untyped-call]
    return joined


class _Join(torch.autograd.Function):
    """The output, whose gradient both phases of the backward pass take."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, shared: dict[str, Tensor], *ends: Tensor) -> Tensor:
        ctx.shared, ctx.ends = shared, len(ends)
        return y.view_as(y)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        ctx.shared.clear()
        return None, None, *[dy.contiguous()] * ctx.ends


class _Gradient(torch.autograd.Function):
    """A phase of the backward pass: from the gradient of ``y`` to that of ``x`` or of ``w``."""

    @staticmethod
    def forward(
        ctx: Any, leaf: Tensor, phase: Phase, impl: str, shape: torch.Size, shared: dict[str, Tensor],
        names: tuple[str, ...], *saved: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(*saved)
        ctx.phase, ctx.impl, ctx.shared, ctx.names = phase, impl, shared, names
        return leaf.new_empty(()).expand(shape)  # takes no memory, and nothing reads it

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x, w), kept = ctx.saved_tensors[:2], dict(zip(ctx.names[2:], ctx.saved_tensors[2:], strict=True))
        one = Pass(IMPLS[ctx.impl], kernels_for(x), {"x": x, "w": w, "dy": dy}, kept={**kept, **ctx.shared})
        gradient = one.run(ctx.phase)
        ctx.shared.update({name: spectrum for name, spectrum in one.kept.items() if name == "dy"})
        return gradient, *[None] * (5 + len(ctx.saved_tensors))
