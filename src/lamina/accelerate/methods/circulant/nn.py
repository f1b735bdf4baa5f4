"""Block-circulant layers with the signatures of the dense ones, and ``k`` times fewer real parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate.common.activations import MODULES
from lamina.accelerate.methods.circulant import functional
from lamina.accelerate.methods.circulant.activations import (
    Activation,
    InputActivation,
    check_activation,
    check_input_activation,
)
from lamina.accelerate.methods.circulant.config import Impl, Selectable, check_block_size, check_impl
from lamina.accelerate.methods.circulant.lstm.nn import BlockCirculantLSTM
from lamina.accelerate.methods.circulant.projection import coverage, project
from lamina.accelerate.methods.circulant.reference import dense_matrix, flip_signs
from lamina.errors import UsageError

__all__ = ["LAYERS", "BlockCirculantConv1d", "BlockCirculantConv2d", "BlockCirculantLSTM", "BlockCirculantLinear"]

Init = Literal["project", "fresh"]


class BlockCirculantLinear(Selectable, nn.Module):
    """``y = x W^T + b`` with a block-circulant ``W``: ``(..., in_features)`` to ``(..., out_features)``.

    ``weight`` is ``(ceil(out_features / k), ceil(in_features / k), k)``, the first column of each block. Feature counts
    that ``k`` does not divide use part of the last block. Initial weights have the variance of `torch.nn.Linear`.

    Args:
        in_features: size of each input sample.
        out_features: size of each output sample.
        block_size: ``k``, from 2 to 256.
        bias: whether to learn an additive bias.
        signs: whether to apply random sign flips to the inputs, fixed at initialization; see `Circulant`.
        activation: ``"relu"`` if the output is that of a ReLU, which the last kernel computes.
        input_activation: what inputs pass first: ``"relu"``, ``"gelu"`` or ``"gelu_tanh"``.
        impl: the implementation; see `functional`.

    Raises:
        UsageError: an argument is invalid.
    """

    signs: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        block_size: int = 64,
        bias: bool = True,
        *,
        signs: bool = False,
        activation: Activation | None = None,
        input_activation: InputActivation | None = None,
        impl: Impl = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(in_features=in_features, out_features=out_features)
        check_block_size(block_size)
        self.in_features, self.out_features, self.block_size = in_features, out_features, block_size
        self.impl: Impl = check_impl(impl)
        self.activation = check_activation(activation)
        self.input_activation = check_input_activation(input_activation)
        self.kept_energy: float | None = None
        p, q = -(-out_features // block_size), -(-in_features // block_size)
        self.weight = nn.Parameter(torch.empty(p, q, block_size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.register_buffer("signs", torch.empty(block_size, device=device, dtype=dtype) if signs else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize weights and bias uniformly, as the dense layer does, and draw the random signs."""
        shape = self.out_features, self.in_features
        dense = self.weight.new_empty(shape, device="meta")
        init_uniform_(self.weight, self.bias, fan_in=self.in_features, dense=dense)
        init_signs_(self.signs)

    def forward(self, input: Tensor) -> Tensor:
        """``x (..., in_features)`` to ``(..., out_features)``."""
        check_input_size(self, input, -1, self.in_features)
        return functional.linear(
            input, self.weight, self.bias, out_features=self.out_features, signs=self.signs,
            input_activation=activation_before(self), relu=has_relu(self), impl=self.impl, fallback=self.fallback,
        )  # fmt: skip

    @classmethod
    def from_dense(
        cls, dense: nn.Linear, block_size: int = 64, *,
        init: Init = "project", rescale: bool = False, signs: bool = False, impl: Impl = "auto",
    ) -> Self:  # fmt: skip
        """The projection of a dense layer, or with ``init="fresh"`` a newly initialized layer of its sizes.

        ``kept_energy`` of the result is the fraction of the squared Frobenius norm that the projection keeps.

        Raises:
            UsageError: the dense weights are not finite.
        """
        layer: Self = nn.utils.skip_init(
            cls, dense.in_features, dense.out_features, block_size, dense.bias is not None, signs=signs, impl=impl,
            device=dense.weight.device, dtype=dense.weight.dtype,
        )  # fmt: skip
        load_dense(layer, dense, init, rescale)
        return layer

    @torch.no_grad()
    def to_dense(self) -> nn.Module:
        """The equivalent dense layer; with activations, a Sequential of all."""
        dense: nn.Linear = nn.utils.skip_init(
            nn.Linear, self.in_features, self.out_features, self.bias is not None,
            device=self.weight.device, dtype=self.weight.dtype,
        )  # fmt: skip
        store_dense(self, dense, dense_matrix(self.weight, self.out_features, self.in_features, signs=self.signs))
        return with_activations(dense, self)

    def executed(self, phase: str) -> tuple[str, str]:
        """The implementation that computes the layer: ``impl``, or what ``auto`` stands for on its device."""
        return functional.executed(self)

    def extra_repr(self) -> str:
        """Arguments, and the kept energy of a projection."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, block_size={self.block_size}"
        return f"{sizes}, bias={self.bias is not None}{_impl_repr(self)}"


class _BlockCirculantConv(Selectable, nn.Module):
    """The base class of 1D and 2D block-circulant convolutions."""

    axes: ClassVar[int]
    dense: ClassVar[type[nn.Conv1d] | type[nn.Conv2d]]
    signs: Tensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        block_size: int = 64,
        signs: bool = False,
        activation: Activation | None = None,
        input_activation: InputActivation | None = None,
        impl: Impl = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(in_channels=in_channels, out_channels=out_channels, groups=groups)
        check_block_size(block_size)
        if in_channels % groups or out_channels % groups:
            raise UsageError(f"groups: expected a divisor of {in_channels} and {out_channels}, got {groups}")
        modes = ("zeros", "reflect", "replicate", "circular")
        if padding_mode not in modes:
            raise UsageError(f"padding_mode: expected one of {', '.join(modes)}, got {padding_mode!r}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = self._each("kernel_size", kernel_size, 1)
        self.stride = self._each("stride", stride, 1)
        self.dilation = self._each("dilation", dilation, 1)
        self.padding = padding if isinstance(padding, str) else self._each("padding", padding, 0)
        self.padding_mode, self.block_size = padding_mode, block_size
        self.pad_widths = self._pad_widths()
        self.impl: Impl = check_impl(impl)
        self.activation = check_activation(activation)
        self.input_activation = check_input_activation(input_activation)
        self.kept_energy: float | None = None
        p, q = groups * -(-(out_channels // groups) // block_size), -(-(in_channels // groups) // block_size)
        shape = (p, *self.kernel_size, q, block_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.register_buffer("signs", torch.empty(block_size, device=device, dtype=dtype) if signs else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize weights and bias uniformly, as the dense layer does, and draw the random signs."""
        shape = self.out_channels, self.in_channels // self.groups, *self.kernel_size
        dense = self.weight.new_empty(shape, device="meta")
        init_uniform_(self.weight, self.bias, fan_in=dense[0].numel(), dense=dense, groups=self.groups)
        init_signs_(self.signs)

    def forward(self, input: Tensor) -> Tensor:
        """``x (N, in_channels, *sizes)``, or unbatched without ``N``, to ``(N, out_channels, *sizes')``."""
        if input.dim() == self.axes + 1:
            return self.forward(input[None])[0]
        check_input_size(self, input, 1, self.in_channels)
        padding = tuple(before for before, _ in self.pad_widths)
        if self.padding_mode != "zeros" or any(before != after for before, after in self.pad_widths):
            pad = [width for pair in reversed(self.pad_widths) for width in pair]
            input = F.pad(input, pad, "constant" if self.padding_mode == "zeros" else self.padding_mode)
            padding = (0,) * self.axes
        return functional.conv(
            input, self.weight, self.bias, out_channels=self.out_channels, stride=self.stride, padding=padding,
            dilation=self.dilation, groups=self.groups, signs=self.signs, input_activation=activation_before(self),
            relu=has_relu(self), impl=self.impl, fallback=self.fallback,
        )  # fmt: skip

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As `torch.nn.Module`, but ``model.to(memory_format=...)`` does not change the layout of the blocks."""

        def apply_flat(t: Tensor) -> Tensor:
            return fn(t) if t.dim() < 4 else fn(t.flatten(1)).view(t.shape)

        super()._apply(apply_flat, recurse)  # type: ignore[no-untyped-call]
        return self

    @classmethod
    def from_dense(
        cls, dense: nn.Conv1d | nn.Conv2d, block_size: int = 64, *,
        init: Init = "project", rescale: bool = False, signs: bool = False, impl: Impl = "auto",
    ) -> Self:  # fmt: skip
        """The projection of a dense layer, or with ``init="fresh"`` a newly initialized layer of its sizes.

        ``kept_energy`` of the result is the fraction of the squared Frobenius norm that the projection keeps.

        Raises:
            UsageError: the dense weights are not finite.
        """
        layer: Self = nn.utils.skip_init(
            cls, *conv_arguments(dense), block_size=block_size, signs=signs, impl=impl,
            device=dense.weight.device, dtype=dense.weight.dtype,
        )  # fmt: skip
        load_dense(layer, dense, init, rescale, dense.groups)
        return layer

    @torch.no_grad()
    def to_dense(self) -> nn.Module:
        """The equivalent dense layer; with activations, a Sequential of all."""
        dense: nn.Conv1d | nn.Conv2d = nn.utils.skip_init(
            self.dense, *conv_arguments(self), device=self.weight.device, dtype=self.weight.dtype
        )
        sizes = self.out_channels, self.in_channels, self.groups
        store_dense(self, dense, dense_matrix(self.weight, *sizes, self.signs))
        return with_activations(dense, self)

    def executed(self, phase: str) -> tuple[str, str]:
        """The implementation that computes the layer: ``impl``, or what ``auto`` stands for on its device."""
        return functional.executed(self)

    def extra_repr(self) -> str:
        """Arguments, and the kept energy of a projection."""
        names = ("stride", "padding", "dilation", "groups", "padding_mode", "block_size")
        sizes = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        head = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        return f"{head}, {sizes}, bias={self.bias is not None}{_impl_repr(self)}"

    def _each(self, name: str, value: int | tuple[int, ...], least: int) -> tuple[int, ...]:
        values = (value,) * self.axes if isinstance(value, int) else tuple(value)
        if len(values) != self.axes or not all(isinstance(size, int) and size >= least for size in values):
            raise UsageError(f"{name}: expected {self.axes} integer(s) >= {least}, got {value!r}")
        return values

    def _pad_widths(self) -> tuple[tuple[int, int], ...]:
        """Padding before and after each spatial dimension; ``same`` may need one more after than before."""
        if not isinstance(self.padding, str):
            return tuple((size, size) for size in self.padding)
        if self.padding not in ("same", "valid"):
            raise UsageError(f"padding: expected integers, 'same' or 'valid', got {self.padding!r}")
        if self.padding == "valid":
            return ((0, 0),) * self.axes
        if any(stride != 1 for stride in self.stride):
            raise UsageError(f"padding 'same': expected a stride of 1, got {self.stride}")
        extents = [d * (size - 1) for d, size in zip(self.dilation, self.kernel_size, strict=True)]
        return tuple((extent // 2, extent - extent // 2) for extent in extents)


class BlockCirculantConv1d(_BlockCirculantConv):
    """`torch.nn.Conv1d` with a block-circulant channel matrix for each filter tap: ``(N, C, L)``.

    ``weight`` is ``(groups * ceil(out / groups / k), kernel, ceil(in / groups / k), k)``. With dilation it is the layer
    of a time-delay neural network (TDNN).
    """

    axes, dense = 1, nn.Conv1d


class BlockCirculantConv2d(_BlockCirculantConv):
    """`torch.nn.Conv2d` with a block-circulant channel matrix for each filter tap: ``(N, C, H, W)``.

    ``weight`` is ``(groups * ceil(out / groups / k), KH, KW, ceil(in / groups / k), k)``.
    """

    axes, dense = 2, nn.Conv2d


LAYERS = (BlockCirculantLinear, BlockCirculantConv1d, BlockCirculantConv2d, BlockCirculantLSTM)
"""All block-circulant layer classes."""


def allow_fallback(model: nn.Module) -> None:
    """Let circulant layers, whose ``impl`` was selected elsewhere, compute by ``auto`` what it refuses."""
    for layer in model.modules():
        if isinstance(layer, LAYERS):
            layer.fallback = True


def conv_arguments(layer: Any) -> tuple[Any, ...]:
    """The positional arguments of a dense or circulant convolution."""
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
    return *(getattr(layer, name) for name in names), layer.bias is not None, layer.padding_mode


@torch.no_grad()
def init_uniform_(weight: Tensor, bias: Tensor | None, *, fan_in: int, dense: Tensor, groups: int = 1) -> None:
    """Fill with the uniform distribution of the dense layer, and with zeros where a partial block is not used."""
    bound = 1 / math.sqrt(fan_in)
    weight.uniform_(-bound, bound)
    if weight.numel() * weight.shape[-1] != dense.numel() and not weight.is_meta:
        used = coverage(torch.ones_like(dense, device=weight.device), weight.shape[-1], groups) > 0
        weight.mul_(used)
    if bias is not None:
        bias.uniform_(-bound, bound)


@torch.no_grad()
def init_signs_(signs: Tensor | None) -> None:
    """Fill with random signs. All blocks share them, so that they are part of the transform."""
    if signs is not None:
        signs.bernoulli_().mul_(2).sub_(1)


@torch.no_grad()
def load_dense(layer: Any, dense: Any, init: Init, rescale: bool, groups: int = 1) -> None:
    """Fill an uninitialized circulant layer from a dense one."""
    if init == "fresh":
        layer.reset_parameters()
    else:
        init_signs_(layer.signs)
        source = flip_signs(dense.weight, layer.signs)
        projection = project(source, layer.block_size, groups=groups, rescale=rescale)
        layer.weight.copy_(projection.weight)
        layer.kept_energy = projection.kept_energy
        if dense.bias is not None:
            layer.bias.copy_(dense.bias)
    layer.train(dense.training)
    for name, parameter in dense.named_parameters():
        getattr(layer, name).requires_grad_(parameter.requires_grad)


def store_dense(layer: Any, dense: Any, matrix: Tensor) -> None:
    """Fill an uninitialized dense layer from a circulant one."""
    dense.weight.copy_(matrix)
    if layer.bias is not None:
        dense.bias.copy_(layer.bias)
    dense.train(layer.training)
    for name, parameter in dense.named_parameters():
        parameter.requires_grad_(getattr(layer, name).requires_grad)


def _impl_repr(layer: Any) -> str:
    kept = "" if layer.kept_energy is None else f", kept_energy={layer.kept_energy:.3g}"
    signs = "" if layer.signs is None else ", signs=True"
    activations = f", input_activation={layer.input_activation}" if activation_before(layer) else ""
    activations += f", activation={layer.activation}" if has_relu(layer) else ""
    return f"{signs}{activations}, impl={layer.impl}{kept}"


def has_relu(layer: Any) -> bool:
    """Whether a layer's output is that of a ReLU; those that were pickled before layers could have one have none."""
    return getattr(layer, "activation", None) is not None


def activation_before(layer: Any) -> InputActivation | None:
    """What the inputs of a layer pass first."""
    found: InputActivation | None = getattr(layer, "input_activation", None)
    return found


def with_activations(dense: nn.Module, layer: Any) -> nn.Module:
    """A dense layer with the activations of a circulant one."""
    first = activation_before(layer)
    before = [] if first is None else [MODULES[first]()]
    after = [nn.ReLU()] * has_relu(layer)
    return nn.Sequential(*before, dense, *after).train(layer.training) if before or after else dense


def check_sizes(**sizes: int) -> None:
    """Check numbers of features, channels or groups.

    Raises:
        UsageError: one is not an integer of at least 1.
    """
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UsageError(f"{name}: expected an integer of at least 1, got {size!r}")


def check_input_size(layer: nn.Module, x: Tensor, axis: int, expected: int) -> None:
    """Check a dimension of an input.

    Raises:
        UsageError: the dimension has another size.
    """
    if x.dim() <= axis or x.shape[axis] != expected:
        shape = tuple(x.shape)
        raise UsageError(f"{type(layer).__name__}: expected {expected} in dimension {axis} of the input, got {shape}")
