"""Linear layers."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from lamina.spec.cost import Phase
from lamina.spec.layers.base import Layer, Positive, require
from lamina.spec.shape import Shape, elements


class Linear(Layer):
    """``y = x W^T`` over the last axis; with ``spatial``, over all axes except the batch.

    DNNMark's FullyConnected is the spatial form: it reads ``(N, C, H, W)`` and answers ``(N, out, 1, 1)``.
    """

    kind: ClassVar[str] = "linear"

    out_features: Positive
    bias: bool = False
    spatial: bool = False

    def output(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        require(len(x) >= 2, "an input of at least 2 axes (N, ..., F)", x)
        return (x[0], self.out_features, 1, 1) if self.spatial else (*x[:-1], self.out_features)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        features = prod(inputs[0][1:]) if self.spatial else inputs[0][-1]
        return {"weight": (self.out_features, features)} | ({"bias": (self.out_features,)} if self.bias else {})

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        return 2 * elements(inputs[0]) * self.out_features

    def saved(self, *inputs: Shape) -> int:
        return elements(self.parameters(*inputs)["weight"])
