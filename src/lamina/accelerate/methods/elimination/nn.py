"""Layers with pruned input channels, with the signatures of the dense ones. Their weights are stored compacted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate.common.choices import check_choice
from lamina.accelerate.methods.elimination import functional, reference
from lamina.accelerate.methods.elimination.config import BYS, IMPLS, By, Impl, check_whole
from lamina.accelerate.methods.elimination.indexed import Index, Indexed
from lamina.accelerate.methods.elimination.lstm import EliminatedLSTM
from lamina.errors import UsageError

__all__ = ["EliminatedConv1d", "EliminatedConv2d", "EliminatedLSTM", "EliminatedLinear"]

Layer = TypeVar("Layer", bound=Indexed)
Dense = TypeVar("Dense", bound=nn.Module)


class EliminatedLinear(Indexed):
    """``y = x[..., index] W^T + b``: ``(..., in_features)`` to ``(..., out_features)``, ``weight (out, kept)``.

    Args:
        in_features: features of the input, pruned ones included.
        out_features: features of the output.
        index: the remaining inputs, in the order of the weight's columns.
        bias: whether to add one.
        impl: the implementation; see `functional`.

    Raises:
        UsageError: a size below 1, or an index out of range.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        index: Index,
        bias: bool = True,
        *,
        impl: Impl = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_whole("in_features", in_features)
        check_whole("out_features", out_features)
        check_choice("impl", impl, IMPLS)
        self.in_features, self.out_features, self.impl = in_features, out_features, impl
        self.tile: tuple[int, ...] = ()
        self._keep(index, in_features, "channel", 1, device)
        self.weight = nn.Parameter(torch.empty(out_features, len(self.index), device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the weights as a dense layer with this number of inputs does."""
        _initialize(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """``x (..., in_features)`` to ``(..., out_features)``."""
        return functional.linear(input, self.weight, self.bias, self.at, impl=self.impl, tile=self.tile)

    @classmethod
    def from_dense(cls, dense: nn.Linear, index: Index, *, factor: float = 1.0, impl: Impl = "auto") -> Self:
        """The dense layer with only the inputs in ``index``, and its weights times ``factor``."""
        layer: Self = nn.utils.skip_init(
            cls, dense.in_features, dense.out_features, index, dense.bias is not None, impl=impl,
            device=dense.weight.device, dtype=dense.weight.dtype,
        )  # fmt: skip
        layer._keep(index, dense.in_features, "channel", 1, dense.weight.device)
        return _copy_from_dense(layer, dense, dense.weight.detach(), factor)

    @torch.no_grad()
    def to_dense(self) -> nn.Linear:
        """The dense layer that computes the same: the weights of pruned inputs are zeros."""
        dense: nn.Linear = nn.utils.skip_init(
            nn.Linear, self.in_features, self.out_features, self.bias is not None,
            device=self.weight.device, dtype=self.weight.dtype,
        )  # fmt: skip
        return _copy_to_dense(self, dense, reference.dense_weight(self.weight, self.index, self.in_features))

    def extra_repr(self) -> str:
        """Sizes and the number of remaining inputs."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, kept={len(self.index)}"
        return f"{sizes}, bias={self.bias is not None}, impl={self.impl}"


class _EliminatedConv(Indexed):
    """Base of 1d and 2d convolutions."""

    axes: ClassVar[int]
    dense: ClassVar[type[nn.Conv1d] | type[nn.Conv2d]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        index: Index,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        by: By = "channel",
        impl: Impl = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("by", by, BYS)
        check_choice("impl", impl, IMPLS)
        # A dense layer without storage validates the sizes and computes the padding.
        make: Any = self.dense
        sizes = in_channels, out_channels, kernel_size, stride, padding, dilation
        plain = make(*sizes, padding_mode=padding_mode, device="meta")
        self.in_channels, self.out_channels, self.padding_mode, self.by = in_channels, out_channels, padding_mode, by
        self.kernel_size, self.stride, self.dilation = plain.kernel_size, plain.stride, plain.dilation
        self.padding, self.groups, self.impl = plain.padding, 1, impl
        self.pads = list(plain._reversed_padding_repeated_twice)
        self.tile: tuple[int, ...] = ()
        taps = torch.Size(self.kernel_size).numel()
        self._keep(index, in_channels, by, taps, device)
        shape = (out_channels, len(self.index), *(() if by == "tap" else self.kernel_size))
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the weights as a dense layer with this number of inputs does."""
        _initialize(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """``x (N, in_channels, *sizes)`` to ``(N, out_channels, *sizes')``; ``N`` may be omitted."""
        if input.dim() == self.axes + 1:
            return self.forward(input[None])[0]
        before, after = self.pads[::2], self.pads[1::2]
        padding = before[::-1]
        if self.padding_mode != "zeros" or before != after:
            input = F.pad(input, self.pads, "constant" if self.padding_mode == "zeros" else self.padding_mode)
            padding = [0] * self.axes
        if self.axes == 1:
            if input.dim() != 3:
                raise UsageError(f"x: expected (N, {self.in_channels}, L), got {tuple(input.shape)}")
            weight = self.weight if self.by == "tap" else self.weight[:, :, None]
            return self._convolved(input[:, :, None], weight, padding).squeeze(2)
        return self._convolved(input, self.weight, padding)

    def _convolved(self, x: Tensor, weight: Tensor, padding: list[int]) -> Tensor:
        kernel, stride, dilation = (_pair(sizes, 1) for sizes in (self.kernel_size, self.stride, self.dilation))
        return functional.conv2d(
            x, weight, self.bias, self.at, kernel=kernel, stride=stride, padding=_pair(padding, 0),
            dilation=dilation, impl=self.impl, tile=self.tile,
        )  # fmt: skip

    @classmethod
    def from_dense(
        cls, dense: nn.Conv1d | nn.Conv2d, index: Index, *,
        by: By = "channel", factor: float = 1.0, impl: Impl = "auto",
    ) -> Self:  # fmt: skip
        """The dense layer with only the inputs in ``index``, and its weights times ``factor``."""
        if dense.groups != 1:
            raise UsageError(f"groups: expected 1, got {dense.groups}")
        layer: Self = nn.utils.skip_init(
            cls, dense.in_channels, dense.out_channels, dense.kernel_size, index, dense.stride, dense.padding,
            dense.dilation, dense.bias is not None, dense.padding_mode, by=by, impl=impl,
            device=dense.weight.device, dtype=dense.weight.dtype,
        )  # fmt: skip
        layer._keep(index, dense.in_channels, by, torch.Size(dense.kernel_size).numel(), dense.weight.device)
        weight = dense.weight.detach()
        return _copy_from_dense(layer, dense, weight.flatten(1) if by == "tap" else weight, factor)

    @torch.no_grad()
    def to_dense(self) -> nn.Conv1d | nn.Conv2d:
        """The dense layer that computes the same: the weights of pruned inputs are zeros."""
        dense: nn.Conv1d | nn.Conv2d = nn.utils.skip_init(
            self.dense, self.in_channels, self.out_channels, self.kernel_size, self.stride, self.padding,
            self.dilation, 1, self.bias is not None, self.padding_mode,
            device=self.weight.device, dtype=self.weight.dtype,
        )  # fmt: skip
        full = reference.dense_weight(self.weight, self.index, self.in_channels, self.kernel_size)
        return _copy_to_dense(self, dense, full)

    def extra_repr(self) -> str:
        """Sizes and the number of remaining inputs."""
        names = ("kernel_size", "stride", "padding", "dilation", "padding_mode", "by")
        sizes = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        head = f"{self.in_channels}, {self.out_channels}, kept={len(self.index)}"
        return f"{head}, {sizes}, bias={self.bias is not None}, impl={self.impl}"


class EliminatedConv1d(_EliminatedConv):
    """`torch.nn.Conv1d` with pruned input channels, or pruned taps of them: ``(N, C, L)``.

    ``weight`` is ``(out, kept, kernel)``, or by tap ``(out, kept)``; ``index`` holds channels, or
    ``channel * kernel + tap``.
    """

    axes, dense = 1, nn.Conv1d


class EliminatedConv2d(_EliminatedConv):
    """`torch.nn.Conv2d` with pruned input channels, or pruned taps of them: ``(N, C, H, W)``.

    ``weight`` is ``(out, kept, KH, KW)``, or by tap ``(out, kept)``; ``index`` holds channels, or
    ``channel * KH * KW + tap``.
    """

    axes, dense = 2, nn.Conv2d


def _pair(sizes: Sequence[int], missing: int) -> tuple[int, int]:
    """Sizes of two axes; those of one axis become an image of height 1."""
    width, height = [*reversed([int(size) for size in sizes]), missing][:2]
    return height, width


@torch.no_grad()
def _initialize(weight: nn.Parameter, bias: nn.Parameter | None) -> None:
    bound = weight[0].numel() ** -0.5
    weight.uniform_(-bound, bound)
    if bias is not None:
        bias.uniform_(-bound, bound)


@torch.no_grad()
def _copy_from_dense(layer: Layer, dense: Any, weight: Tensor, factor: float) -> Layer:
    kept = weight.index_select(1, layer.index)
    layer.get_parameter("weight").copy_(kept if factor == 1.0 else kept * factor)
    if dense.bias is not None:
        layer.get_parameter("bias").copy_(dense.bias)
    layer.train(dense.training)
    for name, parameter in dense.named_parameters():
        layer.get_parameter(name).requires_grad_(parameter.requires_grad)
    return layer


def _copy_to_dense(layer: Any, dense: Dense, weight: Tensor) -> Dense:
    dense.get_parameter("weight").copy_(weight)
    if layer.bias is not None:
        dense.get_parameter("bias").copy_(layer.bias)
    dense.train(layer.training)
    for name, parameter in layer.named_parameters():
        dense.get_parameter(name).requires_grad_(parameter.requires_grad)
    return dense
