"""Block-circulant layers with the signatures of the dense ones. Their parameters are real and ``k`` times fewer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate.methods.circulant import functional
from lamina.accelerate.methods.circulant.config import Impl, check_block_size, check_impl
from lamina.accelerate.methods.circulant.lstm.nn import BlockCirculantLSTM
from lamina.accelerate.methods.circulant.projection import coverage, project
from lamina.accelerate.methods.circulant.reference import dense_matrix, signed
from lamina.errors import UsageError

__all__ = ["LAYERS", "BlockCirculantConv1d", "BlockCirculantConv2d", "BlockCirculantLSTM", "BlockCirculantLinear"]

Init = Literal["project", "fresh"]


class BlockCirculantLinear(nn.Module):
    """``y = x W^T + b``, ``W`` made of circulant blocks: ``(..., in_features)`` to ``(..., out_features)``.

    ``weight`` is ``(ceil(out_features / k), ceil(in_features / k), k)``, the first column of each block. Widths that
    ``k`` does not divide use part of the last block. New weights have the variance of the dense layer's.

    Args:
        in_features: the input's width.
        out_features: the output's width.
        block_size: ``k``, from 2 to 256.
        bias: whether to add one.
        signs: whether to change the signs of fixed, randomly drawn inputs; see `Circulant`.
        impl: how to compute it; see `functional`.

    Raises:
        UsageError: a size that no layer can have.
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
        impl: Impl = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_widths(in_features=in_features, out_features=out_features)
        check_block_size(block_size)
        check_impl(impl)
        self.in_features, self.out_features, self.block_size = in_features, out_features, block_size
        self.impl: Impl = impl
        self.kept_energy: float | None = None
        p, q = -(-out_features // block_size), -(-in_features // block_size)
        self.weight = nn.Parameter(torch.empty(p, q, block_size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.register_buffer("signs", torch.empty(block_size, device=device, dtype=dtype) if signs else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights, as uniform as the dense layer draws its own."""
        shape = self.out_features, self.in_features
        draw(self.weight, self.bias, fan_in=self.in_features, dense=self.weight.new_empty(shape, device="meta"))
        draw_signs(self.signs)

    def forward(self, x: Tensor) -> Tensor:
        """``x (..., in_features)`` to ``(..., out_features)``."""
        check_width(self, x, -1, self.in_features)
        return functional.linear(
            x, self.weight, self.bias, out_features=self.out_features, signs=self.signs, impl=self.impl
        )

    @classmethod
    def from_dense(
        cls, dense: nn.Linear, block_size: int = 64, *,
        init: Init = "project", rescale: bool = False, signs: bool = False, impl: Impl = "auto",
    ) -> Self:  # fmt: skip
        """The nearest block-circulant layer, or a fresh one of its sizes; ``kept_energy`` says how near.

        Raises:
            UsageError: the dense weights are not finite.
        """
        layer: Self = nn.utils.skip_init(
            cls, dense.in_features, dense.out_features, block_size, dense.bias is not None, signs=signs, impl=impl,
            device=dense.weight.device, dtype=dense.weight.dtype,
        )  # fmt: skip
        adopt(layer, dense, init, rescale)
        return layer

    @torch.no_grad()
    def to_dense(self) -> nn.Linear:
        """The dense layer that computes the same."""
        dense: nn.Linear = nn.utils.skip_init(
            nn.Linear, self.in_features, self.out_features, self.bias is not None,
            device=self.weight.device, dtype=self.weight.dtype,
        )  # fmt: skip
        release(self, dense, dense_matrix(self.weight, self.out_features, self.in_features, signs=self.signs))
        return dense

    def extra_repr(self) -> str:
        """Sizes, and what a projection kept."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, block_size={self.block_size}"
        return f"{sizes}, bias={self.bias is not None}{manner(self)}"


class _BlockCirculantConv(nn.Module):
    """What convolutions over one and two axes share."""

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
        impl: Impl = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_widths(in_channels=in_channels, out_channels=out_channels, groups=groups)
        check_block_size(block_size)
        check_impl(impl)
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
        self.margins = self._margins()
        self.impl: Impl = impl
        self.kept_energy: float | None = None
        p, q = groups * -(-(out_channels // groups) // block_size), -(-(in_channels // groups) // block_size)
        shape = (p, *self.kernel_size, q, block_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.register_buffer("signs", torch.empty(block_size, device=device, dtype=dtype) if signs else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights, as uniform as the dense layer draws its own."""
        shape = self.out_channels, self.in_channels // self.groups, *self.kernel_size
        dense = self.weight.new_empty(shape, device="meta")
        draw(self.weight, self.bias, fan_in=dense[0].numel(), dense=dense, groups=self.groups)
        draw_signs(self.signs)

    def forward(self, x: Tensor) -> Tensor:
        """``x (N, in_channels, *sizes)`` to ``(N, out_channels, *sizes')``; one image may come without ``N``."""
        if x.dim() == self.axes + 1:
            return self.forward(x[None])[0]
        check_width(self, x, 1, self.in_channels)
        padding = tuple(before for before, _ in self.margins)
        if self.padding_mode != "zeros" or any(before != after for before, after in self.margins):
            margins = [side for pair in reversed(self.margins) for side in pair]
            x = F.pad(x, margins, "constant" if self.padding_mode == "zeros" else self.padding_mode)
            padding = (0,) * self.axes
        return functional.conv(
            x, self.weight, self.bias, out_channels=self.out_channels, stride=self.stride, padding=padding,
            dilation=self.dilation, groups=self.groups, signs=self.signs, impl=self.impl,
        )  # fmt: skip

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As any module's, but blocks are no pictures: ``model.to(memory_format=...)`` leaves them where they lie."""

        def flat(t: Tensor) -> Tensor:
            return fn(t) if t.dim() < 4 else fn(t.flatten(1)).view(t.shape)

        super()._apply(flat, recurse)  # type: ignore[no-untyped-call]
        return self

    @classmethod
    def from_dense(
        cls, dense: nn.Conv1d | nn.Conv2d, block_size: int = 64, *,
        init: Init = "project", rescale: bool = False, signs: bool = False, impl: Impl = "auto",
    ) -> Self:  # fmt: skip
        """The nearest block-circulant layer, or a fresh one of its sizes; ``kept_energy`` says how near.

        Raises:
            UsageError: the dense weights are not finite.
        """
        layer: Self = nn.utils.skip_init(
            cls, *geometry(dense), block_size=block_size, signs=signs, impl=impl,
            device=dense.weight.device, dtype=dense.weight.dtype,
        )  # fmt: skip
        adopt(layer, dense, init, rescale, dense.groups)
        return layer

    @torch.no_grad()
    def to_dense(self) -> nn.Conv1d | nn.Conv2d:
        """The dense layer that computes the same."""
        dense: nn.Conv1d | nn.Conv2d = nn.utils.skip_init(
            self.dense, *geometry(self), device=self.weight.device, dtype=self.weight.dtype
        )
        release(self, dense, dense_matrix(self.weight, self.out_channels, self.in_channels, self.groups, self.signs))
        return dense

    def extra_repr(self) -> str:
        """Sizes, and what a projection kept."""
        names = ("stride", "padding", "dilation", "groups", "padding_mode", "block_size")
        sizes = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        head = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        return f"{head}, {sizes}, bias={self.bias is not None}{manner(self)}"

    def _each(self, name: str, value: int | tuple[int, ...], least: int) -> tuple[int, ...]:
        values = (value,) * self.axes if isinstance(value, int) else tuple(value)
        if len(values) != self.axes or not all(isinstance(size, int) and size >= least for size in values):
            raise UsageError(f"{name}: expected {self.axes} whole number(s) >= {least}, got {value!r}")
        return values

    def _margins(self) -> tuple[tuple[int, int], ...]:
        """Padding before and after each axis; ``same`` may need one more after than before."""
        if not isinstance(self.padding, str):
            return tuple((size, size) for size in self.padding)
        if self.padding not in ("same", "valid"):
            raise UsageError(f"padding: expected numbers, 'same' or 'valid', got {self.padding!r}")
        if self.padding == "valid":
            return ((0, 0),) * self.axes
        if any(step != 1 for step in self.stride):
            raise UsageError(f"padding 'same': expected a stride of 1, got {self.stride}")
        extents = [d * (size - 1) for d, size in zip(self.dilation, self.kernel_size, strict=True)]
        return tuple((extent // 2, extent - extent // 2) for extent in extents)


class BlockCirculantConv1d(_BlockCirculantConv):
    """`torch.nn.Conv1d` whose channels are mixed by circulant blocks, one for each tap: ``(N, C, L)``.

    ``weight`` is ``(groups * ceil(out / groups / k), kernel, ceil(in / groups / k), k)``. With dilation it is the
    layer of a time-delay network.
    """

    axes, dense = 1, nn.Conv1d


class BlockCirculantConv2d(_BlockCirculantConv):
    """`torch.nn.Conv2d` whose channels are mixed by circulant blocks, one for each tap: ``(N, C, H, W)``.

    ``weight`` is ``(groups * ceil(out / groups / k), KH, KW, ceil(in / groups / k), k)``.
    """

    axes, dense = 2, nn.Conv2d


LAYERS = (BlockCirculantLinear, BlockCirculantConv1d, BlockCirculantConv2d, BlockCirculantLSTM)
"""Every kind of layer."""


def geometry(layer: Any) -> tuple[Any, ...]:
    """A convolution's arguments, in the order in which dense and circulant ones take them."""
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
    return *(getattr(layer, name) for name in names), layer.bias is not None, layer.padding_mode


@torch.no_grad()
def draw(weight: Tensor, bias: Tensor | None, *, fan_in: int, dense: Tensor, groups: int = 1) -> None:
    """Uniform weights of the dense layer's variance, and zeros where ragged blocks have numbers nothing uses."""
    bound = 1 / math.sqrt(fan_in)
    weight.uniform_(-bound, bound)
    if weight.numel() * weight.shape[-1] != dense.numel() and not weight.is_meta:
        used = coverage(torch.ones_like(dense, device=weight.device), weight.shape[-1], groups) > 0
        weight.mul_(used)
    if bias is not None:
        bias.uniform_(-bound, bound)


@torch.no_grad()
def draw_signs(signs: Tensor | None) -> None:
    """Each sign of a block by chance; all blocks have the same, so that they belong to the transform."""
    if signs is not None:
        signs.bernoulli_().mul_(2).sub_(1)


@torch.no_grad()
def adopt(layer: Any, dense: Any, init: Init, rescale: bool, groups: int = 1) -> None:
    """Fill an uninitialised layer from a dense one."""
    if init == "fresh":
        layer.reset_parameters()
    else:
        draw_signs(layer.signs)
        source = signed(dense.weight, layer.signs)
        projection = project(source, layer.block_size, groups=groups, rescale=rescale)
        layer.weight.copy_(projection.weight)
        layer.kept_energy = projection.kept_energy
        if dense.bias is not None:
            layer.bias.copy_(dense.bias)
    layer.train(dense.training)
    for name, parameter in dense.named_parameters():
        getattr(layer, name).requires_grad_(parameter.requires_grad)


def release(layer: Any, dense: Any, matrix: Tensor) -> None:
    """Fill an uninitialised dense layer from a circulant one."""
    dense.weight.copy_(matrix)
    if layer.bias is not None:
        dense.bias.copy_(layer.bias)
    dense.train(layer.training)


def manner(layer: Any) -> str:
    """How a layer computes, and what a projection kept of the dense weights."""
    kept = "" if layer.kept_energy is None else f", kept_energy={layer.kept_energy:.3g}"
    signs = "" if layer.signs is None else ", signs=True"
    return f"{signs}, impl={layer.impl}{kept}"


def check_widths(**widths: int) -> None:
    """Refuse what is no number of channels or features.

    Raises:
        UsageError: one is not a whole number of at least 1.
    """
    for name, width in widths.items():
        if not isinstance(width, int) or isinstance(width, bool) or width < 1:
            raise UsageError(f"{name}: expected a whole number of at least 1, got {width!r}")


def check_width(layer: nn.Module, x: Tensor, axis: int, expected: int) -> None:
    """Refuse an input that another layer was meant for.

    Raises:
        UsageError: the axis has another size.
    """
    if x.dim() <= axis or x.shape[axis] != expected:
        shape = tuple(x.shape)
        raise UsageError(f"{type(layer).__name__}: expected {expected} on axis {axis} of the input, got {shape}")
