"""Layers that select, for each phase, the library's dense product or one that skips zeros.

They subclass the dense layers and have the same parameters under the same names. A dense phase makes the same library
call as the dense layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from lamina.accelerate.common.choices import check_choice
from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.common.padding import padding_refusal
from lamina.accelerate.methods.activation_sparsity import functional
from lamina.accelerate.methods.activation_sparsity.config import (
    MIN_SPEEDUP,
    WEIGHTS,
    Impl,
    Weights,
    check_impl,
    check_min_speedup,
    speedup_of_margin,
)
from lamina.accelerate.methods.activation_sparsity.cost import (
    Calibration,
    Density,
    DensitySource,
    Measured,
    PhaseImpls,
    PhaseSelection,
    Size,
    choose,
)
from lamina.accelerate.methods.activation_sparsity.tiles import columns_per_list
from lamina.errors import UnsupportedError, UsageError
from lamina.spec import Phase

Layer = TypeVar("Layer", bound=nn.Module)
PHASES = tuple(Phase)
"""A tuple, since ``torch.compile`` cannot iterate over an enumeration."""

__all__ = ["SparseAdaptiveConv2d", "SparseAdaptiveLinear", "choices_of"]


class Adaptive(nn.Module, ABC):
    """The selection of an implementation for each phase, common to both layers.

    Attributes:
        impl, weights, min_speedup: see `Sparse`.
        density: returns the density of the input; ``None`` if it is unknown.
        gradient_density: returns the density of the output's gradient.
        calibration: constants of the cost model, or measured times of each phase; without it all phases are dense.
        dense_us: measured times of dense phases, which replace the predicted ones.
        choices: the implementation of each phase in the last pass, and the reason.

    A copied or unpickled layer has no density. In a compiled graph the choices are those of the last pass before
    compilation.
    """

    impl: Impl
    weights: Weights
    min_speedup: float
    density: DensitySource | None
    gradient_density: DensitySource | None
    calibration: Calibration | Mapping[Phase, Measured] | None
    dense_us: dict[Phase, float]
    choices: dict[Phase, PhaseSelection]
    _cached_impls: tuple[tuple[Any, ...], PhaseImpls] | None

    def _configure(self, impl: Impl, weights: Weights, min_speedup: float, margin: float | None) -> None:
        check_choice("weights", weights, WEIGHTS)
        min_speedup = min_speedup if margin is None else speedup_of_margin(margin)
        check_min_speedup(min_speedup)
        self.impl, self.weights, self.min_speedup = check_impl(impl), weights, min_speedup
        self.density = self.gradient_density = self.calibration = None
        self.dense_us, self.choices, self._cached_impls = {}, {}, None

    def phase_impls(self, x: Tensor) -> PhaseImpls:
        """The implementation of each phase of a pass with input ``x``; recorded in `choices`."""
        if torch.compiler.is_compiling():
            return PhaseImpls(
                *(self.choices[phase].impl if phase in self.choices else self._forced(phase) for phase in PHASES)
            )
        known = [source() if source else None for source in (self.density, self.gradient_density)]
        options = self.impl, self.min_speedup, self.calibration, [*self.dense_us.items()]
        # Most passes repeat the last one; small layers are launch-bound, so the choice is cached.
        state = x.shape, x.device, x.dtype, functional.is_supported(x), known, options
        if self._cached_impls is None or self._cached_impls[0] != state:
            self.choices = {phase: self._choose(phase, x, *known) for phase in PHASES}
            self._cached_impls = state, PhaseImpls(*(choice.impl for choice in self.choices.values()))
        return self._cached_impls[1]

    def _forced(self, phase: Phase) -> Impl:
        """The requested implementation if the phase has it, else dense."""
        return "dense" if self.impl == "auto" or (self._dense_only(phase) and self.impl != "reference") else self.impl

    def _choose(self, phase: Phase, x: Tensor, density: Density | None, gradient: Density | None) -> PhaseSelection:
        if self.impl != "auto":
            impl = self._forced(phase)
            reason = "requested" if impl == self.impl else self._dense_only(phase)
            return PhaseSelection(impl, f"{impl}: {reason}")
        if not functional.is_supported(x):
            return PhaseSelection("dense", f"dense: the kernels do not support {x.dtype} on {x.device.type}")
        if reason := self._dense_only(phase):
            return PhaseSelection("dense", f"dense: {reason}")
        known = gradient if phase is Phase.BACKWARD_DATA else density
        given = self.calibration
        calibration = given if given is None or isinstance(given, Calibration) else given.get(phase)
        return choose(self._size(phase, x), known, calibration, self.min_speedup, self.dense_us.get(phase))

    def executed(self, phase: str) -> tuple[str, str]:
        """The implementation of a phase in the last pass, and the reason; of a ``step``, that of its sparse phases."""
        found = {one.value: choice for one, choice in self.choices.items()}
        if phase in found:
            impl, reason = found[phase].impl, found[phase].reason
            return (impl if impl == "dense" else f"sparse[impl={impl}]"), reason.partition(": ")[2] or reason
        sparse = {name: choice for name, choice in found.items() if choice.impl != "dense"}
        if not sparse:
            return "dense", "; ".join(dict.fromkeys(choice.reason.removeprefix("dense: ") for choice in found.values()))
        written = ",".join(f"{name}={choice.impl}" for name, choice in sparse.items())
        return f"sparse[{written}]", "; ".join(f"{name} {choice.reason}" for name, choice in sparse.items())

    @abstractmethod
    def _dense_only(self, phase: Phase) -> str | None:
        """Why a phase has no other implementation than dense, or ``None``."""

    @abstractmethod
    def _size(self, phase: Phase, x: Tensor) -> Size:
        """The sizes of the product that a phase computes."""

    def _options_repr(self) -> str:
        options = {"impl": self.impl} | ({"weights": self.weights} if self.weights != "same" else {})
        return "".join(f", {name}={value}" for name, value in options.items())

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"density": None, "gradient_density": None, "_cached_impls": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Layers that version 0.1 pickled have a margin, and implementations by their former names.
        state = {name: value for name, value in state.items() if name not in ("margin", "_planned")} | {
            "impl": check_impl(state["impl"]),
            "min_speedup": speedup_of_margin(state["margin"]) if "margin" in state else state["min_speedup"],
            "choices": {
                phase: replace(choice, impl=check_impl(choice.impl)) for phase, choice in state["choices"].items()
            },
            "_cached_impls": None,
        }
        super().__setstate__(state)  # type: ignore[no-untyped-call]


class SparseAdaptiveLinear(Adaptive, nn.Linear):
    """``y = x W^T + b``, with the arguments and parameters of `torch.nn.Linear`.

    Args:
        impl, weights, min_speedup, margin: see `Sparse`.

    Raises:
        UsageError: an option is invalid.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        impl: Impl = "auto",
        weights: Weights = "same",
        min_speedup: float = MIN_SPEEDUP,
        margin: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Linear.__init__(self, in_features, out_features, bias, device, dtype)
        self._configure(impl, weights, min_speedup, margin)

    def forward(self, input: Tensor) -> Tensor:
        """``x (..., in_features)`` to ``(..., out_features)``."""
        return functional.linear(input, self.weight, self.bias, impls=self.phase_impls(input), weights=self.weights)

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
        cls,
        dense: nn.Linear,
        *,
        impl: Impl = "auto",
        weights: Weights = "same",
        min_speedup: float = MIN_SPEEDUP,
        margin: float | None = None,
    ) -> Self:
        """The adaptive layer of a dense one; they share their parameters."""
        layer = cls(
            dense.in_features, dense.out_features, dense.bias is not None, impl=impl, weights=weights,
            min_speedup=min_speedup, margin=margin, device="meta",
        )  # fmt: skip
        return _with_parameters_of(layer, dense)

    def to_dense(self) -> nn.Linear:
        """The dense layer of this one; they share their parameters."""
        return _with_parameters_of(
            nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta"), self
        )

    def extra_repr(self) -> str:
        """The dense layer's, and the implementation."""
        return nn.Linear.extra_repr(self) + self._options_repr()


class SparseAdaptiveConv2d(Adaptive, nn.Conv2d):
    """A convolution with the arguments and parameters of `torch.nn.Conv2d`: one group, zero padding.

    Args:
        impl, weights, min_speedup, margin: see `Sparse`.

    Raises:
        UsageError: an option is invalid, or ``padding="same"`` is asymmetric.
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
        min_speedup: float = MIN_SPEEDUP,
        margin: float | None = None,
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
        if reason := asymmetric_padding(self):
            raise UsageError(f"padding 'same': {reason}; pad before the layer")
        self._configure(impl, weights, min_speedup, margin)

    @property
    def zero_padding(self) -> tuple[int, int]:
        """Zeros on each side of the height and of the width, for ``"same"`` and ``"valid"`` too."""
        if isinstance(self.padding, str):
            if self.padding == "valid":
                return 0, 0
            height, width = (d * (k - 1) // 2 for d, k in zip(self.dilation, self.kernel_size, strict=True))
            return height, width
        height, width = self.padding
        return height, width

    def forward(self, input: Tensor) -> Tensor:
        """``x (N, C, H, W)`` or ``(C, H, W)`` to the convolution's output."""
        if input.dim() == 3:
            return self.forward(input[None])[0]
        impls = self.phase_impls(input) if input.dim() == 4 else functional.ALL_DENSE  # which raises
        if impls == functional.ALL_DENSE:
            y: Tensor = self._conv_forward(input, self.weight, self.bias)
            return y
        return functional.conv2d(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.zero_padding,
            self.dilation,
            impls=impls,
            weights=self.weights,
        )

    def _dense_only(self, phase: Phase) -> str | None:
        if phase is Phase.BACKWARD_WEIGHT:
            return "a convolution's weight gradient has no other implementation"
        if phase is Phase.BACKWARD_DATA and tuple(self.stride) != (1, 1):
            return f"stride {tuple(self.stride)} is not supported"
        return None

    def _size(self, phase: Phase, x: Tensor) -> Size:
        window = Conv2dGeometry.of(self.kernel_size, self.stride, self.zero_padding, self.dilation)
        height, width = window.output_size(*x.shape[2:])
        pixels, out = x.shape[0] * height * width, self.out_channels
        if phase is Phase.FORWARD:
            columns_listed = columns_per_list(x.shape[0], x.shape[2], x.shape[3], window)
            return Size(out, pixels, window.taps * self.in_channels, x.numel(), x.itemsize, columns_listed)
        columns = x.shape[0] * x.shape[2] * x.shape[3]
        columns_listed = columns_per_list(x.shape[0], height, width, window)
        return Size(self.in_channels, columns, window.taps * out, pixels * out, x.itemsize, columns_listed)

    @classmethod
    def from_dense(
        cls,
        dense: nn.Conv2d,
        *,
        impl: Impl = "auto",
        weights: Weights = "same",
        min_speedup: float = MIN_SPEEDUP,
        margin: float | None = None,
    ) -> Self:
        """The adaptive layer of a dense one; they share their parameters.

        Raises:
            UsageError: an option is invalid.
            UnsupportedError: it has groups, or its padding is asymmetric or not of zeros.
        """
        if reason := conv_refusal(dense):
            raise UnsupportedError(reason)
        layer = cls(
            **_conv_arguments(dense), impl=impl, weights=weights, min_speedup=min_speedup, margin=margin, device="meta"
        )
        return _with_parameters_of(layer, dense)

    def to_dense(self) -> nn.Conv2d:
        """The dense layer of this one; they share their parameters."""
        return _with_parameters_of(nn.Conv2d(**_conv_arguments(self), device="meta"), self)

    def extra_repr(self) -> str:
        """The dense layer's, and the implementation."""
        shown: str = nn.Conv2d.extra_repr(self)
        return shown + self._options_repr()


def choices_of(model: nn.Module) -> Mapping[str, Mapping[Phase, PhaseSelection]]:
    """The choices of every adaptive layer in its last pass, by the layer's name; `dispatch.report` formats them."""
    return {name: layer.choices for name, layer in model.named_modules() if isinstance(layer, Adaptive)}


def conv_refusal(layer: nn.Conv2d) -> str | None:
    """Why a convolution cannot be sparsity-adaptive, or ``None``."""
    if layer.groups > 1:
        return f"groups={layer.groups} is not supported"
    return padding_refusal(layer) or asymmetric_padding(layer)


def asymmetric_padding(layer: nn.Conv2d) -> str | None:
    """Why ``padding="same"`` cannot be split evenly between both sides, or ``None``."""
    totals = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    odd = [total for total in totals if total % 2]
    return f"its padding of {odd[0]} in total is asymmetric" if layer.padding == "same" and odd else None


def _conv_arguments(layer: nn.Conv2d) -> dict[str, Any]:
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation")
    return {name: getattr(layer, name) for name in names} | {"bias": layer.bias is not None}


def _with_parameters_of(layer: Layer, other: nn.Module) -> Layer:
    """The layer with the parameters and the training mode of another."""
    for name, parameter in other.named_parameters(recurse=False):
        layer.register_parameter(name, parameter)
    return layer.train(other.training)
