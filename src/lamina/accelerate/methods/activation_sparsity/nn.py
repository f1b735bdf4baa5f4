"""Layers that choose, phase by phase, between the library's dense product and one without zeros.

They are the dense layers, with the same parameters under the same names; dense phases are computed by the very calls
that the dense layers make.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from lamina.accelerate.common.choices import check_choice
from lamina.accelerate.methods.activation_sparsity import functional
from lamina.accelerate.methods.activation_sparsity.config import IMPLS, WEIGHTS, Impl, Weights, check_margin
from lamina.accelerate.methods.activation_sparsity.dispatch import (
    Calibration,
    Choice,
    Density,
    DensitySource,
    Measured,
    Plan,
    Size,
    choose,
)
from lamina.accelerate.methods.activation_sparsity.tiles import columns_together
from lamina.accelerate.methods.activation_sparsity.window import Window
from lamina.errors import UsageError
from lamina.spec import Phase

Layer = TypeVar("Layer", bound=nn.Module)
PHASES = tuple(Phase)
"""What a compiled graph can go through, as it cannot through an enumeration."""

__all__ = ["SparseAdaptiveConv2d", "SparseAdaptiveLinear", "choices_of"]


class Adaptive(nn.Module, ABC):
    """What both layers share: what they know, and what they chose.

    Attributes:
        impl, weights, margin: as `Sparse` has them.
        density: where the zeros of the input come from; nothing is known without one.
        gradient_density: the same for the gradient of the output.
        calibration: constants of the cost model, or of each phase its own times; without them all is dense.
        dense_us: times of dense phases as they were measured, in place of predicted ones.
        choices: how each phase of the last pass was computed, and why.

    A copy, and a layer that was saved whole, knows no density. In a compiled graph the choices are those of the last
    pass before it was compiled.
    """

    impl: Impl
    weights: Weights
    margin: float
    density: DensitySource | None
    gradient_density: DensitySource | None
    calibration: Calibration | Mapping[Phase, Measured] | None
    dense_us: dict[Phase, float]
    choices: dict[Phase, Choice]
    _planned: tuple[tuple[Any, ...], Plan] | None

    def _adapt(self, impl: Impl, weights: Weights, margin: float) -> None:
        check_choice("impl", impl, IMPLS)
        check_choice("weights", weights, WEIGHTS)
        check_margin(margin)
        self.impl, self.weights, self.margin = impl, weights, margin
        self.density = self.gradient_density = self.calibration = None
        self.dense_us, self.choices, self._planned = {}, {}, None

    def plan(self, x: Tensor) -> Plan:
        """How the phases of a pass by ``x`` are computed; it is noted in `choices`."""
        if torch.compiler.is_compiling():
            return Plan(
                *(self.choices[phase].impl if phase in self.choices else self._given(phase) for phase in PHASES)
            )
        known = [source() if source else None for source in (self.density, self.gradient_density)]
        asked = self.impl, self.margin, self.calibration, [*self.dense_us.items()]
        # Most passes are like the one before, and small layers must not wait for a choice to be made again.
        state = x.shape, x.device, x.dtype, functional.takes(x), known, asked
        if self._planned is None or self._planned[0] != state:
            self.choices = {phase: self._chosen(phase, x, *known) for phase in PHASES}
            self._planned = state, Plan(*(choice.impl for choice in self.choices.values()))
        return self._planned[1]

    def _given(self, phase: Phase) -> Impl:
        """The implementation that was asked for, where the phase has it."""
        return "dense" if self.impl == "auto" or (self._dense_only(phase) and self.impl != "reference") else self.impl

    def _chosen(self, phase: Phase, x: Tensor, density: Density | None, gradient: Density | None) -> Choice:
        if self.impl != "auto":
            impl = self._given(phase)
            return Choice(impl, f"{impl}: {self._dense_only(phase)}" if impl != self.impl else f"{impl}: as asked for")
        if not functional.takes(x):
            return Choice("dense", f"dense: the kernels take no {x.dtype} on {x.device.type}")
        if reason := self._dense_only(phase):
            return Choice("dense", f"dense: {reason}")
        known = gradient if phase is Phase.BACKWARD_DATA else density
        told = self.calibration
        calibration = told if told is None or isinstance(told, Calibration) else told.get(phase)
        return choose(self._size(phase, x), known, calibration, self.margin, self.dense_us.get(phase))

    @abstractmethod
    def _dense_only(self, phase: Phase) -> str | None:
        """Why a phase can only be dense, or nothing."""

    @abstractmethod
    def _size(self, phase: Phase, x: Tensor) -> Size:
        """The sizes of a phase's product."""

    def _how(self) -> str:
        told = {"impl": self.impl} | ({"weights": self.weights} if self.weights != "same" else {})
        return "".join(f", {name}={value}" for name, value in told.items())

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"density": None, "gradient_density": None, "_planned": None}


class SparseAdaptiveLinear(Adaptive, nn.Linear):
    """``y = x W^T + b``, with the arguments, parameters and names of `torch.nn.Linear`.

    Args:
        impl, weights, margin: as `Sparse` has them.

    Raises:
        UsageError: an unknown word, or a margin that is no share.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        impl: Impl = "auto",
        weights: Weights = "same",
        margin: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Linear.__init__(self, in_features, out_features, bias, device, dtype)
        self._adapt(impl, weights, margin)

    def forward(self, x: Tensor) -> Tensor:
        """``x (..., in_features)`` to ``(..., out_features)``."""
        return functional.linear(x, self.weight, self.bias, plan=self.plan(x), weights=self.weights)

    def _dense_only(self, phase: Phase) -> str | None:
        return None

    def _size(self, phase: Phase, x: Tensor) -> Size:
        rows, out = x.shape[:-1].numel(), self.out_features
        if phase is Phase.FORWARD:
            return Size(out, rows, self.in_features, x.numel(), x.itemsize)
        if phase is Phase.BACKWARD_DATA:
            return Size(self.in_features, rows, out, rows * out, x.itemsize)
        return Size(out, self.in_features, rows, x.numel(), x.itemsize)

    @classmethod
    def from_dense(
        cls, dense: nn.Linear, *, impl: Impl = "auto", weights: Weights = "same", margin: float = 0.1
    ) -> Self:
        """The adaptive layer with the very parameters of the dense one."""
        layer = cls(
            dense.in_features, dense.out_features, dense.bias is not None, impl=impl, weights=weights, margin=margin,
            device="meta",
        )  # fmt: skip
        return _adopt(layer, dense)

    def to_dense(self) -> nn.Linear:
        """The dense layer with the very parameters of this one."""
        return _adopt(nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta"), self)

    def extra_repr(self) -> str:
        """Sizes and how it computes."""
        return nn.Linear.extra_repr(self) + self._how()


class SparseAdaptiveConv2d(Adaptive, nn.Conv2d):
    """A convolution with the arguments, parameters and names of `torch.nn.Conv2d`, of one group and padded by zeros.

    Args:
        impl, weights, margin: as `Sparse` has them.

    Raises:
        UsageError: an unknown word, a margin that is no share, or margins that differ from side to side.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: str | int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        bias: bool = True,
        *,
        impl: Impl = "auto",
        weights: Weights = "same",
        margin: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Conv2d.__init__(
            self,
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            bias=bias,
            device=device,
            dtype=dtype,
        )
        uneven = isinstance(self.padding, str) and uneven_margins(self)
        if uneven:
            raise UsageError(f"padding 'same': {uneven}; pad before the layer")
        self._adapt(impl, weights, margin)

    @property
    def margins(self) -> tuple[int, int]:
        """Zeros on either side of the height and of the width."""
        if isinstance(self.padding, str):
            if self.padding == "valid":
                return 0, 0
            down, right = (d * (k - 1) // 2 for d, k in zip(self.dilation, self.kernel_size, strict=True))
            return down, right
        down, right = self.padding
        return down, right

    def forward(self, x: Tensor) -> Tensor:
        """``x (N, C, H, W)`` or ``(C, H, W)`` to the convolution's output."""
        if x.dim() == 3:
            return self.forward(x[None])[0]
        plan = self.plan(x) if x.dim() == 4 else functional.DENSE  # of which the library complains
        if plan == functional.DENSE:
            y: Tensor = self._conv_forward(x, self.weight, self.bias)
            return y
        return functional.conv2d(
            x, self.weight, self.bias, self.stride, self.margins, self.dilation, plan=plan, weights=self.weights
        )

    def _dense_only(self, phase: Phase) -> str | None:
        if phase is Phase.BACKWARD_WEIGHT:
            return "the weight's gradient of a convolution is always the library's"
        if phase is Phase.BACKWARD_DATA and tuple(self.stride) != (1, 1):
            return f"its windows are {tuple(self.stride)} apart"
        return None

    def _size(self, phase: Phase, x: Tensor) -> Size:
        window = Window.of(self.kernel_size, self.stride, self.margins, self.dilation)
        height, width = window.output(*x.shape[2:])
        pixels, out = x.shape[0] * height * width, self.out_channels
        if phase is Phase.FORWARD:
            together = columns_together(x.shape[0], x.shape[2], x.shape[3], window)
            return Size(out, pixels, window.taps * self.in_channels, x.numel(), x.itemsize, together)
        columns = x.shape[0] * x.shape[2] * x.shape[3]
        together = columns_together(x.shape[0], height, width, window)
        return Size(self.in_channels, columns, window.taps * out, pixels * out, x.itemsize, together)

    @classmethod
    def from_dense(
        cls, dense: nn.Conv2d, *, impl: Impl = "auto", weights: Weights = "same", margin: float = 0.1
    ) -> Self:
        """The adaptive layer with the very parameters of the dense one."""
        layer = cls(**_convolution(dense), impl=impl, weights=weights, margin=margin, device="meta")
        return _adopt(layer, dense)

    def to_dense(self) -> nn.Conv2d:
        """The dense layer with the very parameters of this one."""
        return _adopt(nn.Conv2d(**_convolution(self), device="meta"), self)

    def extra_repr(self) -> str:
        """Sizes and how it computes."""
        shown: str = nn.Conv2d.extra_repr(self)
        return shown + self._how()


def choices_of(model: nn.Module) -> Mapping[str, Mapping[Phase, Choice]]:
    """The choices of the last pass of every adaptive layer, by its name; `dispatch.report` makes rows of them."""
    return {name: layer.choices for name, layer in model.named_modules() if isinstance(layer, Adaptive)}


def uneven_margins(layer: nn.Conv2d) -> str | None:
    """What ``padding="same"`` cannot split in halves, or nothing."""
    spans = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    odd = [span for span in spans if span % 2]
    return f"its margins of {odd[0]} in all differ from side to side" if layer.padding == "same" and odd else None


def _convolution(layer: nn.Conv2d) -> dict[str, Any]:
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation")
    return {name: getattr(layer, name) for name in names} | {"bias": layer.bias is not None}


def _adopt(layer: Layer, other: nn.Module) -> Layer:
    """Give a layer the parameters and the mode of another."""
    for name, parameter in other.named_parameters(recurse=False):
        layer.register_parameter(name, parameter)
    return layer.train(other.training)
