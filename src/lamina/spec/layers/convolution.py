"""Convolution over one or two axes: strided, padded, dilated, grouped, transposed."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from lamina.spec.cost import Phase
from lamina.spec.layers.base import Layer, NonNegative, Positive, require
from lamina.spec.shape import Shape, elements, transposed, window_floor


def broadcast(values: Any, rank: int, *keys: str) -> Any:
    """Expand single values of ``keys`` to ``rank`` axes: ``3`` becomes ``(3, 3)``."""
    if not isinstance(values, dict):
        return values
    return values | {
        key: (values[key],) * rank for key in keys if isinstance(values.get(key), int) and values[key] is not True
    }


Algorithm = Literal[
    "direct",
    "gemm",
    "fft",
    "space_to_depth",
    "winograd",
    "winograd2",
    "winograd4",
    "cudnn:fft",
    "cudnn:winograd",
    "cudnn:tensor_core",
    "cudnn:implicit_gemm",
    "cudnn:strict_fp32",
]
"""Convolution algorithms; ``direct`` is the vendor library's own choice."""


class Convolution(Layer):
    """``y[n,o,t] = sum_{c,k} x[n,c,s*t+d*k-p] * w[o,c,k]``; input ``(N, C, H, W)``, or ``(N, C, T)`` for rank 1."""

    kind: ClassVar[str] = "convolution"

    out_channels: Positive
    kernel: tuple[Positive, ...]
    stride: tuple[Positive, ...] = 1  # type: ignore[assignment]
    padding: tuple[NonNegative, ...] = 0  # type: ignore[assignment]
    dilation: tuple[Positive, ...] = 1  # type: ignore[assignment]
    groups: Positive = 1
    bias: bool = False
    rank: Literal[1, 2] = 2
    transposed: bool = False
    output_padding: tuple[NonNegative, ...] = 0  # type: ignore[assignment]
    flip: bool = False
    """True convolution, with a flipped kernel (DNNMark's ``conv_mode=convolution``)."""
    algorithm: Algorithm = "direct"
    algorithm_data: Algorithm = "direct"
    algorithm_weight: Algorithm = "direct"
    workspace_limit: NonNegative | None = None
    """Bytes of workspace that cuDNN's engine may use in the forward phase, by ``direct`` or ``cudnn:*``.

    Needs a GPU and nvidia-cudnn-frontend: ``direct`` ignores it elsewhere. ``None``: no limit.
    """
    workspace_limit_data: NonNegative | None = None
    workspace_limit_weight: NonNegative | None = None

    @model_validator(mode="before")
    @classmethod
    def _broadcast(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        rank = values.get("rank", 2)
        if rank not in (1, 2):
            return values
        values = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0} | values
        return broadcast(values, rank, "kernel", "stride", "padding", "dilation", "output_padding")

    @model_validator(mode="after")
    def _axes(self) -> Self:
        for key in ("kernel", "stride", "padding", "dilation", "output_padding"):
            if len(getattr(self, key)) != self.rank:
                raise ValueError(
                    f"{key} has {len(getattr(self, key))} values, expected {self.rank} (or one for all axes)"
                )
        if self.out_channels % self.groups:
            raise ValueError(f"out_channels {self.out_channels} is not a multiple of groups {self.groups}")
        if any(self.output_padding) and not self.transposed:
            raise ValueError("output_padding needs transposed = true")
        if any(extra >= max(s, d) for extra, s, d in zip(self.output_padding, self.stride, self.dilation, strict=True)):
            raise ValueError("output_padding must be smaller than stride or dilation")
        return self

    def output(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        axes = "N, C, H, W" if self.rank == 2 else "N, C, T"
        require(len(x) == 2 + self.rank, f"an input of {2 + self.rank} axes ({axes})", x)
        require(x[1] % self.groups == 0, f"input channels divisible by {self.groups} groups", x)
        if self.transposed:
            sizes = tuple(
                transposed(*axis)
                for axis in zip(
                    x[2:],
                    self.kernel,
                    self.stride,
                    self.padding,
                    self.dilation,
                    self.output_padding,
                    strict=True,
                )
            )
        else:
            sizes = tuple(
                window_floor(*axis)
                for axis in zip(x[2:], self.kernel, self.stride, self.padding, self.dilation, strict=True)
            )
        require(min(sizes) >= 1, f"an input at least as large as the kernel {self.kernel} after padding", x)
        return (x[0], self.out_channels, *sizes)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        channels = inputs[0][1]
        outer, inner = (channels, self.out_channels) if self.transposed else (self.out_channels, channels)
        weight = {"weight": (outer, inner // self.groups, *self.kernel)}
        return weight | ({"bias": (self.out_channels,)} if self.bias else {})

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        (x,) = inputs
        positions = prod(x[2:] if self.transposed else self.output(x)[2:])
        return 2 * x[0] * positions * elements(self.parameters(x)["weight"])

    def saved(self, *inputs: Shape) -> int:
        return elements(self.parameters(*inputs)["weight"])
