"""Fused layers. Names and shapes of their parameters are the dense layers', so state dicts load both ways."""

from __future__ import annotations

from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from lamina.accelerate.common.activation_names import Activation
from lamina.accelerate.common.activations import MODULES, activation_of
from lamina.accelerate.common.choices import check_choice
from lamina.accelerate.common.geometry import Pool2dGeometry
from lamina.accelerate.common.padding import padding_refusal
from lamina.accelerate.methods.fusion import functional
from lamina.accelerate.methods.fusion.config import ACTIVATIONS, IMPLS, Impl
from lamina.errors import UnsupportedError, UsageError


class FusedLinear(nn.Module):
    """``activation(x W^T + b)``: ``(..., in_features)`` to ``(..., out_features)``.

    Args:
        in_features: features of the input.
        out_features: features of the output.
        activation: applied to the product.
        bias: whether to add one.
        impl: the implementation; see `functional`.
        l1_bypass: whether the kernel's loads bypass L1.

    Raises:
        UsageError: an unknown activation or implementation.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        activation: Activation = "relu",
        bias: bool = True,
        *,
        impl: Impl = "auto",
        l1_bypass: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("activation", activation, ACTIVATIONS)
        check_choice("impl", impl, IMPLS)
        dense = nn.Linear(in_features, out_features, bias, device=device, dtype=dtype)
        self.in_features, self.out_features = in_features, out_features
        self.weight, self.bias = dense.weight, dense.bias
        self.activation: Activation = activation
        self.impl: Impl = impl
        self.l1_bypass = l1_bypass

    def forward(self, input: Tensor) -> Tensor:
        """``x (..., in_features)`` to ``(..., out_features)``."""
        return functional.linear(
            input, self.weight, self.bias, activation=self.activation, impl=self.impl, l1_bypass=self.l1_bypass
        )

    @classmethod
    def from_dense(cls, dense: nn.Sequential, *, impl: Impl = "auto", l1_bypass: bool = False) -> Self:
        """The fused form of a linear layer and its activation, with the same parameters.

        Raises:
            UsageError: the modules are not such a pair.
        """
        activation = activation_of(dense[1]) if len(dense) == 2 and type(dense[0]) is nn.Linear else None
        if activation is None:
            raise UsageError(f"expected a Linear and its activation, got {[type(m).__name__ for m in dense]}")
        old = cast(nn.Linear, dense[0])
        layer = cls(
            old.in_features, old.out_features, activation, old.bias is not None, impl=impl, l1_bypass=l1_bypass,
            device="meta",
        )  # fmt: skip
        layer.weight, layer.bias = old.weight, old.bias
        return layer.train(old.training)

    def to_dense(self) -> nn.Sequential:
        """The linear layer and its activation, with the same parameters."""
        dense = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        dense.weight, dense.bias = self.weight, self.bias
        return nn.Sequential(dense, MODULES[self.activation]()).train(self.training)

    def executed(self, phase: str) -> tuple[str, str]:
        """The implementation that computes the layer: ``impl``, or what ``auto`` stands for on its device."""
        return _executed(self.impl, functional.chosen(self.impl, self.weight, self.activation, self.bias is not None))

    def extra_repr(self) -> str:
        """Sizes and the activation."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{sizes}, activation={self.activation}, impl={self.impl}" + ", l1_bypass=True" * self.l1_bypass


class FusedConv2d(nn.Module):
    """``max_pool(relu(conv(x) + b))``, or without the pooling: ``(N, C, H, W)`` to ``(N, C', H', W')``.

    The convolution is the library's; bias, ReLU and pooling are one kernel on its output.

    Args:
        dense: the convolution, whose parameters become this layer's.
        pool: the max pooling, if any.
        impl: the implementation of what follows the convolution.
        l1_bypass: whether the kernel's loads bypass L1.

    Raises:
        UsageError: an unknown implementation.
        UnsupportedError: the convolution pads with something other than zeros.
    """

    def __init__(
        self, dense: nn.Conv2d, pool: Pool2dGeometry | None = None, *, impl: Impl = "auto", l1_bypass: bool = False
    ) -> None:
        super().__init__()
        check_choice("impl", impl, IMPLS)
        if reason := padding_refusal(dense):
            raise UnsupportedError(reason)
        self.weight, self.bias = dense.weight, dense.bias
        self.kernel_size, self.stride, self.padding = dense.kernel_size, dense.stride, dense.padding
        self.dilation, self.groups, self.pool = dense.dilation, dense.groups, pool
        self.impl: Impl = impl
        self.l1_bypass = l1_bypass
        self.train(dense.training)

    def forward(self, input: Tensor) -> Tensor:
        """``x (N, C, H, W)`` to ``(N, C', H', W')``; one image may come without ``N``."""
        if input.dim() == 3:
            return self.forward(input[None])[0]
        return functional.conv2d(
            input, self.weight, self.bias, stride=self.stride, padding=self.padding, dilation=self.dilation,
            groups=self.groups, pool=self.pool, impl=self.impl, l1_bypass=self.l1_bypass,
        )  # fmt: skip

    @classmethod
    def from_dense(cls, dense: nn.Sequential, *, impl: Impl = "auto", l1_bypass: bool = False) -> Self:
        """The fused form of a convolution, its ReLU and optionally its max pooling, with the same parameters.

        Raises:
            UsageError: they are no such layers.
            UnsupportedError: the convolution pads with something other than zeros.
        """
        kinds = [type(module) for module in dense]
        if kinds not in ([nn.Conv2d, nn.ReLU], [nn.Conv2d, nn.ReLU, nn.MaxPool2d]):
            raise UsageError(f"expected a Conv2d, its ReLU and perhaps a MaxPool2d, got {[k.__name__ for k in kinds]}")
        pool = window_of(cast(nn.MaxPool2d, dense[2])) if len(dense) == 3 else None
        return cls(cast(nn.Conv2d, dense[0]), pool, impl=impl, l1_bypass=l1_bypass)

    def to_dense(self) -> nn.Sequential:
        """The separate layers, with the same parameters."""
        out_channels, per_group = self.weight.shape[:2]
        dense = nn.Conv2d(
            per_group * self.groups, out_channels, cast(Any, self.kernel_size), cast(Any, self.stride),
            cast(Any, self.padding), cast(Any, self.dilation), self.groups, self.bias is not None, device="meta",
        )  # fmt: skip
        dense.weight, dense.bias = self.weight, self.bias
        after: list[nn.Module] = [nn.ReLU()]
        if self.pool is not None:
            after.append(
                nn.MaxPool2d(self.pool.kernel, self.pool.stride, self.pool.padding, ceil_mode=self.pool.ceil_mode)
            )
        return nn.Sequential(dense, *after).train(self.training)

    def executed(self, phase: str) -> tuple[str, str]:
        """The implementation that computes the layer: ``impl``, or what ``auto`` stands for on its device."""
        impl = functional.chosen(self.impl, self.weight, biased=self.bias is not None, product=False)
        return _executed(self.impl, impl)

    def extra_repr(self) -> str:
        """Sizes and the pooling."""
        out_channels, per_group = self.weight.shape[:2]
        sizes = f"{per_group * self.groups}, {out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        return f"{sizes}, relu, pool={self.pool}, impl={self.impl}" + ", l1_bypass=True" * self.l1_bypass


def _executed(requested: Impl, impl: Impl) -> tuple[str, str]:
    return f"fused[impl={impl}]", "requested" if impl == requested else "auto"


def window_of(module: nn.MaxPool2d) -> Pool2dGeometry:
    """The geometry of a max pooling.

    Raises:
        UsageError: the kernel does not support its options.
    """
    if module.return_indices or _pair(module.dilation) != (1, 1):
        raise UsageError("pooling: expected no dilation and no indices")
    sizes = (*_pair(module.kernel_size), *_pair(module.stride), *_pair(module.padding))
    pool = Pool2dGeometry(*sizes, ceil_mode=module.ceil_mode)
    functional.check_pool(pool)
    return pool


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
