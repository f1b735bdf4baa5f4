"""Layers with quantized weights: for inference, and with gradients of their inputs and biases, not of the weights."""

from __future__ import annotations

from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate.common.padding import padding_refusal
from lamina.accelerate.methods.weight_only import functional
from lamina.accelerate.methods.weight_only.config import Format, Impl, WeightOnly
from lamina.accelerate.methods.weight_only.formats import Packed, pack, unpack
from lamina.errors import UnsupportedError

CONVOLUTIONS: dict[type[nn.Module], Any] = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}


class _WeightOnly(nn.Module):
    """Base: weights as the buffers ``codes`` and ``scale``, and the sizes of the dense layer."""

    codes: Tensor
    scale: Tensor

    def __init__(self, dense: Any, config: WeightOnly) -> None:
        super().__init__()
        packed = pack(dense.weight.flatten(1), config.format, config.scaling)
        self.register_buffer("codes", packed.codes)
        self.register_buffer("scale", packed.scale)
        self.bias = dense.bias
        self.format: Format = config.format
        self.impl: Impl = config.impl
        self._inputs = packed.inputs
        self._shape, self._dtype = dense.weight.shape, dense.weight.dtype
        self._sizes = dense.extra_repr()
        for name in dense.__constants__:  # which networks read, as they do those of the dense layer
            setattr(self, name, getattr(dense, name))
        self.train(dense.training)

    @property
    def packed(self) -> Packed:
        """The quantized weights."""
        return Packed(self.format, self.codes, self.scale, self._inputs)

    @property
    def weight(self) -> Tensor:
        """The dequantized weights, in the dense layer's dtype."""
        return unpack(self.packed).to(self._dtype).view(self._shape)

    @classmethod
    def from_dense(cls, dense: Any, config: WeightOnly) -> Self:
        """The layer with the quantized weights of a dense one.

        Raises:
            UsageError: a weight is not finite, or it is out of the format's range.
            UnsupportedError: a convolution pads with something other than zeros.
        """
        return cls(dense, config)

    def executed(self, phase: str) -> tuple[str, str]:
        """The implementation that computes the layer: ``impl``, or what ``auto`` stands for on its device."""
        x = self.codes.new_empty(0, dtype=self._dtype)
        impl: str = functional.chosen(self.impl, x, self.packed)
        reason = "requested" if impl == self.impl else f"auto on {x.device.type}"
        if isinstance(self, WeightOnlyConv) and impl != "reference":
            impl, reason = "reference", "convolutions dequantize their weights first"
        return f"weight-only[format={self.format},impl={impl}]", reason

    def extra_repr(self) -> str:
        """The dense layer's sizes, and the format."""
        return f"{self._sizes}, format={self.format}, impl={self.impl}"

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        # .half() and .double() change the dtype of dequantized weights. Codes and scales keep theirs: only where it
        # changed are they taken again, since .to_empty() comes from the meta device, which holds nothing to take.
        before = {"codes": self.codes, "scale": self.scale}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in before.items():
            if (changed := getattr(self, name)).dtype != tensor.dtype:
                setattr(self, name, tensor.to(changed.device))
        self._dtype = fn(torch.empty(0, dtype=self._dtype)).dtype
        return self


class WeightOnlyLinear(_WeightOnly):
    """``x W^T + b``: ``(..., in_features)`` to ``(..., out_features)``."""

    def forward(self, input: Tensor) -> Tensor:
        """``x (..., in_features)`` to ``(..., out_features)``."""
        return functional.linear(input, self.packed, self.bias, impl=self.impl)

    def to_dense(self) -> nn.Linear:
        """A linear layer with the dequantized weights."""
        dense = nn.Linear(self._shape[1], self._shape[0], self.bias is not None, device="meta")
        dense.weight = nn.Parameter(self.weight)
        dense.bias = self.bias
        return dense.train(self.training)


class WeightOnlyConv(_WeightOnly):
    """A convolution whose weights are dequantized in front of it: less to store, the arithmetic unchanged."""

    def __init__(self, dense: Any, config: WeightOnly) -> None:
        if reason := padding_refusal(dense):
            raise UnsupportedError(reason)
        super().__init__(dense, config)
        self._function = CONVOLUTIONS[type(dense)]
        self._kind = type(dense)
        self._geometry = (dense.stride, dense.padding, dense.dilation, dense.groups)

    def forward(self, input: Tensor) -> Tensor:
        """The dense convolution with the dequantized weights."""
        result: Tensor = self._function(input, self.weight.to(input.dtype), self.bias, *self._geometry)
        return result

    def to_dense(self) -> nn.Module:
        """A convolution with the dequantized weights."""
        stride, padding, dilation, groups = self._geometry
        sizes = (self._shape[1] * groups, self._shape[0], tuple(self._shape[2:]), stride, padding, dilation, groups)
        dense: Any = self._kind(*sizes, bias=self.bias is not None, device="meta")
        dense.weight = nn.Parameter(self.weight)
        dense.bias = self.bias
        converted: nn.Module = dense.train(self.training)
        return converted
