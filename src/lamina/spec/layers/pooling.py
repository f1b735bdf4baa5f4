"""Pooling layers: windows of a fixed size, or a fixed number of windows."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from lamina.spec.cost import Phase
from lamina.spec.layers.base import Layer, NonNegative, Positive, require
from lamina.spec.layers.convolution import broadcast
from lamina.spec.shape import Shape, elements, window_ceil, window_floor


class Pooling(Layer):
    """Maximum or mean of each window of ``(N, C, H, W)``.

    ``rounding``: ``floor`` drops a window that hangs over the far edge, ``ceil`` keeps it, ``caffe`` keeps it
    as DNNMark does (see :func:`lamina.spec.shape.window_ceil`).
    """

    kind: ClassVar[str] = "pooling"

    mode: Literal["max", "average", "average_excluding_padding"] = "max"
    kernel: tuple[Positive, Positive]
    stride: tuple[Positive, Positive]
    padding: tuple[NonNegative, NonNegative] = (0, 0)
    rounding: Literal["floor", "ceil", "caffe"] = "floor"

    @model_validator(mode="before")
    @classmethod
    def _broadcast(cls, values: Any) -> Any:
        if isinstance(values, dict) and "stride" not in values and "kernel" in values:
            values = values | {"stride": values["kernel"]}
        return broadcast(values, 2, "kernel", "stride", "padding")

    @model_validator(mode="after")
    def _window(self) -> Self:
        for pad, kernel in zip(self.padding, self.kernel, strict=True):
            if pad >= kernel:
                raise ValueError(
                    f"padding {pad} must be smaller than the window {kernel}: a window would contain only padding"
                )
        return self

    def output(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        require(len(x) == 4, "an input of 4 axes (N, C, H, W)", x)
        clip = self.rounding == "ceil" or min(self.padding) > 0
        sizes = tuple(
            window_floor(*axis) if self.rounding == "floor" else window_ceil(*axis, clip=clip)
            for axis in zip(x[2:], self.kernel, self.stride, self.padding, strict=True)
        )
        require(min(sizes) >= 1, f"an input at least as large as the window {self.kernel} after padding", x)
        return (*x[:2], *sizes)

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        window = prod(self.kernel) if phase is Phase.FORWARD or self.mode != "max" else 1
        return window * elements(self.output(*inputs))

    def saved(self, *inputs: Shape) -> int:
        return elements(self.output(*inputs)) if self.mode == "max" else 0


class AdaptivePooling(Layer):
    """Mean (or maximum) of ``size`` equal windows of ``(N, C, H, W)``, for any input size."""

    kind: ClassVar[str] = "adaptive_pooling"

    mode: Literal["max", "average"] = "average"
    size: tuple[Positive, Positive]

    @model_validator(mode="before")
    @classmethod
    def _broadcast(cls, values: Any) -> Any:
        return broadcast(values, 2, "size")

    def output(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        require(len(x) == 4, "an input of 4 axes (N, C, H, W)", x)
        return (*x[:2], *self.size)

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        return elements(inputs[0])
