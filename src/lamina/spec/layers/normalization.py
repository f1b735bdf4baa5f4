"""Normalization layers, and softmax."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from lamina.spec.cost import Phase
from lamina.spec.layers.base import Layer, Positive, require
from lamina.spec.shape import Shape, elements

_MOMENTS = {Phase.FORWARD: 8, Phase.BACKWARD_DATA: 9, Phase.BACKWARD_WEIGHT: 5}
"""Per element, forward: mean 1, variance 3, normalize 2, scale and shift 2. Backward: two sums and one correction."""


class BatchNorm(Layer):
    """``y = gamma * (x - mean) / sqrt(var + eps) + beta``, moments over the batch.

    ``spatial`` takes one mean per channel, ``per_activation`` one per channel and position.
    """

    kind: ClassVar[str] = "batch_norm"

    mode: Literal["spatial", "per_activation"] = "spatial"
    eps: Annotated[float, Field(gt=0)] = 1e-5
    momentum: Annotated[float, Field(ge=0, le=1)] = 0.1

    def output(self, *inputs: Shape) -> Shape:
        require(len(inputs[0]) >= 2, "an input of at least 2 axes (N, C, ...)", inputs[0])
        return inputs[0]

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        statistic = inputs[0][1:2] if self.mode == "spatial" else inputs[0][1:]
        return {"weight": statistic, "bias": statistic}

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        return _MOMENTS[phase] * elements(inputs[0])

    def saved(self, *inputs: Shape) -> int:
        return elements(inputs[0]) + elements(self.parameters(*inputs)["weight"])


class LayerNorm(Layer):
    """``y = gamma * (x - mean) / sqrt(var + eps) + beta``, moments over the last ``axes`` axes of each sample."""

    kind: ClassVar[str] = "layer_norm"

    axes: Positive = 1
    eps: Annotated[float, Field(gt=0)] = 1e-5
    affine: bool = True
    bias: bool = True

    def output(self, *inputs: Shape) -> Shape:
        require(len(inputs[0]) > self.axes, f"an input of more than {self.axes} axes", inputs[0])
        return inputs[0]

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        if not self.affine:
            return {}
        statistic = inputs[0][-self.axes :]
        return {"weight": statistic} | ({"bias": statistic} if self.bias else {})

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        return _MOMENTS[phase] * elements(inputs[0])

    def saved(self, *inputs: Shape) -> int:
        return elements(inputs[0]) + (elements(self.parameters(*inputs)["weight"]) if self.affine else 0)


class LocalResponseNorm(Layer):
    """``y = x / (k + alpha/n * sum of x^2 over n neighbors)^beta``.

    ``cross_channel``: the ``size`` neighboring channels at a position, ``n = size`` (Krizhevsky 2012, 3.3).
    ``within_channel``: the ``size`` neighboring positions along each spatial axis, ``n = size^axes``; neighbors outside
    the input count as zeros. Caffe fixes ``k = 1`` there; MIOpen, like lamina, uses ``k``.
    """

    kind: ClassVar[str] = "local_response_norm"

    mode: Literal["cross_channel", "within_channel"] = "cross_channel"
    size: Positive = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0

    @model_validator(mode="after")
    def _centered(self) -> Self:
        if self.mode == "within_channel" and self.size % 2 == 0:
            raise ValueError(f"mode within_channel needs an odd size, got {self.size}")
        return self

    def output(self, *inputs: Shape) -> Shape:
        require(len(inputs[0]) >= 3, "an input of at least 3 axes (N, C, ...)", inputs[0])
        if self.mode == "within_channel":
            require(len(inputs[0]) <= 4, "an input of at most 2 spatial axes", inputs[0])
        return inputs[0]

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        # Forward: square and add each neighbor, then scale, add k, power, divide. Backward: the same sum again.
        neighbors = self.size if self.mode == "cross_channel" else self.size ** (len(inputs[0]) - 2)
        per_element = 2 * neighbors + (4 if phase is Phase.FORWARD else 6)
        return per_element * elements(inputs[0])

    def saved(self, *inputs: Shape) -> int:
        return 2 * elements(inputs[0])


class Softmax(Layer):
    """``y = exp(x) / sum exp(x)`` over the channels, over a whole sample (``instance``), or over the last axis.

    ``accurate`` subtracts the maximum first, ``fast`` does not, ``log`` answers the logarithm.
    """

    kind: ClassVar[str] = "softmax"

    algorithm: Literal["accurate", "fast", "log"] = "accurate"
    mode: Literal["channel", "instance", "last"] = "channel"

    def output(self, *inputs: Shape) -> Shape:
        require(len(inputs[0]) >= 2, "an input of at least 2 axes (N, C, ...)", inputs[0])
        return inputs[0]

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        forward = 3 if self.algorithm == "fast" else 5
        return (forward if phase is Phase.FORWARD else 4) * elements(inputs[0])

    def saved(self, *inputs: Shape) -> int:
        return elements(inputs[0])
