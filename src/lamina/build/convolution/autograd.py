"""A convolution with one algorithm per phase. Gradients are computed only if required.

The graph is ``y = Join(DataGradient(x), WeightGradient(w))``. The two inner nodes return placeholders: tensors of the
shape of ``y`` over a single element. ``Join`` computes ``y`` and passes the same ``gy`` to both; each computes its own
gradient from it, and autograd runs only the nodes whose gradients are required.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from lamina.build.convolution.algorithm import Algorithm, PhaseAlgorithms
from lamina.build.convolution.geometry import Geometry
from lamina.errors import UsageError
from lamina.spec.cost import Phase
from lamina.spec.shape import Shape, show

DIRECT = PhaseAlgorithms()
"""The vendor library in every phase."""


def convolve(x: Tensor, w: Tensor, geometry: Geometry, algorithms: PhaseAlgorithms = DIRECT) -> Tensor:
    """``y[n,o,t] = sum_{c,k} x[n,c,s*t+d*k-p] * w[o,c,k]``, each phase by the algorithm named for it.

    Inputs are ``(N, C, *size)``, weights ``(K, C/groups, *kernel)``, or ``(C, K/groups, *kernel)`` where
    transposed, in one floating-point type. The caller adds a bias or flips the kernel. Double backward is not
    supported. UsageError on an unknown name or incompatible shapes, UnsupportedError on a shape that one of the
    algorithms does not support, both before anything is computed.
    """
    algorithms.check(geometry, w.shape)
    y_shape = _output_shape(x, w, geometry)
    if (one := algorithms.composed) is not None:
        return one.forward(x, w, geometry)
    constant_x, constant_w = x.detach(), w.detach()
    data = _apply(_DataGradient, x, constant_w, geometry, algorithms.of(Phase.BACKWARD_DATA), y_shape)
    weight = _apply(_WeightGradient, w, constant_x, geometry, algorithms.of(Phase.BACKWARD_WEIGHT), y_shape)
    return _apply(_Join, data, weight, constant_x, constant_w, geometry, algorithms.of(Phase.FORWARD))


def _apply(function: type[Function], *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)
    return result


def _output_shape(x: Tensor, w: Tensor, geometry: Geometry) -> Shape:
    shapes = f"input {show(tuple(x.shape))} and weight {show(tuple(w.shape))}"
    axes = geometry.rank + 2
    if x.dim() != axes or w.dim() != axes:
        raise UsageError(f"convolution over {geometry.rank} axes: expected {axes} dimensions, got {shapes}")
    if x.dtype != w.dtype or x.device != w.device:
        got = f"{x.dtype} on {x.device} and {w.dtype} on {w.device}"
        raise UsageError(f"convolution: expected one type on one device, got {got}; convert one of them")
    outer, inner = w.shape[0], w.shape[1] * geometry.groups
    channels, outputs = (outer, inner) if geometry.transposed else (inner, outer)
    if x.shape[1] != channels or outer % geometry.groups:
        raise UsageError(f"convolution: expected {channels} input channels in {geometry.groups} groups, got {shapes}")
    return (x.shape[0], outputs, *geometry.output_size(x.shape[2:], w.shape[2:]))


class _DataGradient(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, geometry: Geometry, implementation: Algorithm, y_shape: Shape
    ) -> Tensor:
        ctx.save_for_backward(w)
        ctx.geometry, ctx.implementation, ctx.x_shape = geometry, implementation, tuple(x.shape)
        return x.new_empty(1).expand(y_shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:
        (w,) = ctx.saved_tensors
        return ctx.implementation.backward_data(gy, w, ctx.geometry, ctx.x_shape), None, None, None, None


class _WeightGradient(Function):
    @staticmethod
    def forward(
        ctx: Any, w: Tensor, x: Tensor, geometry: Geometry, implementation: Algorithm, y_shape: Shape
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.geometry, ctx.implementation, ctx.w_shape = geometry, implementation, tuple(w.shape)
        return w.new_empty(1).expand(y_shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        return ctx.implementation.backward_weight(gy, x, ctx.geometry, ctx.w_shape), None, None, None, None


class _Join(Function):
    @staticmethod
    def forward(
        ctx: Any, data: Tensor, weight: Tensor, x: Tensor, w: Tensor, geometry: Geometry, implementation: Algorithm
    ) -> Tensor:
        y = implementation.forward(x, w, geometry)
        # Some algorithms return a view of a temporary, which autograd does not let an in-place ReLU modify.
        plain: Tensor = torch.ops.aten._unsafe_view(y, y.shape)
        return plain

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:
        return gy, gy, None, None, None, None
