"""Layers whose operands are packed in shared memory, with the parameters of the dense ones."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from lamina.accelerate.papers.on_chip_fission import functional, reference
from lamina.accelerate.papers.on_chip_fission.config import Impl, OnChip, OnChipFission, Tile
from lamina.errors import UnsupportedError


class _OnChip(nn.Module):
    """What both layers share: the options, and the index of the kept input channels."""

    index: Tensor | None
    weight: Any
    bias: Any
    format: OnChip
    tile: Tile
    impl: Impl

    @classmethod
    def from_dense(cls, dense: Any, config: OnChipFission, index: Tensor | None = None, factor: float = 1.0) -> Self:
        """The layer with the parameters of a dense one; with an index, a copy of its columns times ``factor``.

        Raises:
            UnsupportedError: a convolution has groups, or its padding is ``"same"`` or not of zeros.
        """
        if isinstance(dense, nn.Conv2d) and (reason := conv_refusal(dense)):
            raise UnsupportedError(reason)
        layer: Any = cls._like(dense)
        layer.register_parameter("bias", dense.bias)
        weight = dense.weight if index is None else nn.Parameter(dense.weight.detach()[:, index] * factor)
        layer.register_parameter("weight", weight)
        layer.register_buffer("index", index)
        layer.format, layer.tile, layer.impl = config.format, config.tile, config.impl
        made: Self = layer.train(dense.training)
        return made

    @torch.no_grad()
    def to_dense(self) -> Any:
        """The dense layer with the weights that a product reads. Activations are rounded too, so it differs."""
        dense = self._like(self, self._plain())
        read = reference.read(self.weight.flatten(1), self.format).view(self.weight.shape)
        if self.index is not None:
            sizes = read.shape[0], self._inputs(), *read.shape[2:]
            read = read.new_zeros(sizes).index_copy_(1, self.index, read)
        for name, value in (("weight", read), ("bias", self.bias)):
            trained = value is not None and getattr(self, name).requires_grad
            dense.register_parameter(name, None if value is None else nn.Parameter(value.clone(), trained))
        return dense.train(self.training)

    def executed(self, phase: str) -> tuple[str, str]:
        """The implementation that computes the layer, in its written form, and why it is that one."""
        impl = functional.resolve_impl(self.impl, self.weight)
        kept = "" if self.index is None else f",keep={len(self.index) / self._inputs():.3g}"
        reason = "requested" if impl == self.impl else f"auto on {self.weight.device.type}"
        return f"on-chip-fission[format={self.format},tile={self.tile}{kept},impl={impl}]", reason

    def extra_repr(self) -> str:
        """The dense layer's sizes, and the options."""
        kept = "" if self.index is None else f", kept={len(self.index)}"
        return f"{super().extra_repr()}, format={self.format}, tile={self.tile}{kept}, impl={self.impl}"

    @classmethod
    def _like(cls, layer: Any, kind: Any = None) -> Any:
        raise NotImplementedError

    def _plain(self) -> Any:
        raise NotImplementedError

    def _inputs(self) -> int:
        raise NotImplementedError


class OnChipLinear(_OnChip, nn.Linear):
    """``x W^T + b``: ``(..., in_features)`` to ``(..., out_features)``."""

    def forward(self, input: Tensor) -> Tensor:
        """``x (..., in_features)`` to ``(..., out_features)``."""
        return functional.linear(
            input, self.weight, self.bias, self.index, format=self.format, tile=self.tile, impl=self.impl
        )

    @classmethod
    def _like(cls, layer: Any, kind: Any = None) -> Any:
        return (kind or cls)(layer.in_features, layer.out_features, layer.bias is not None, device="meta")

    def _plain(self) -> Any:
        return nn.Linear

    def _inputs(self) -> int:
        return self.in_features


class OnChipConv2d(_OnChip, nn.Conv2d):
    """A 2D convolution as an implicit GEMM: ``(N, in_channels, H, W)``, or unbatched without ``N``."""

    def forward(self, input: Tensor) -> Tensor:
        """``x (N, in_channels, H, W)`` to ``(N, out_channels, H', W')``."""
        if input.dim() == 3:
            return self.forward(input[None])[0]
        padding: Any = (0, 0) if self.padding == "valid" else self.padding
        stride: Any = self.stride
        dilation: Any = self.dilation
        return functional.conv2d(
            input, self.weight, self.bias, self.index, stride, padding, dilation,
            format=self.format, tile=self.tile, impl=self.impl,
        )  # fmt: skip

    @classmethod
    def _like(cls, layer: Any, kind: Any = None) -> Any:
        sizes = layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding, layer.dilation
        return (kind or cls)(*sizes, bias=layer.bias is not None, device="meta")

    def _plain(self) -> Any:
        return nn.Conv2d

    def _inputs(self) -> int:
        return self.in_channels


def conv_refusal(layer: nn.Conv2d) -> str | None:
    """Why a convolution cannot be replaced, or ``None``."""
    if layer.groups > 1:
        return f"groups={layer.groups} are not supported"
    if layer.padding == "same" or layer.padding_mode != "zeros":
        padding = "'same'" if layer.padding == "same" else f"mode {layer.padding_mode!r}"
        return f"padding {padding} is not supported: pad in front of a layer with padding=0"
    return None
