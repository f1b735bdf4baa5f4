"""Modules that ``torch.nn`` does not have, or not with all the settings of workload files."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.build.convolution import Geometry, PhaseAlgorithms, convolve
from lamina.spec import layers as spec


class AlgorithmConvolution(nn.Module):
    """A convolution with one algorithm per phase; its weights are those of ``dense``."""

    def __init__(self, dense: nn.modules.conv._ConvNd, algorithms: PhaseAlgorithms, flip: bool = False):
        super().__init__()
        self.weight, self.bias = dense.weight, dense.bias
        self.algorithms, self.flip = algorithms, flip
        self.geometry = geometry(dense)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.flip(tuple(range(2, self.weight.dim()))) if self.flip else self.weight
        if torch.is_autocast_enabled(x.device.type):  # once, and not again in each operation of an algorithm
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(dtype), weight.to(dtype)
        y = convolve(x, weight, self.geometry, self.algorithms)
        return y if self.bias is None else y + self.bias.to(y.dtype).view(1, -1, *[1] * (y.dim() - 2))

    def reference(self) -> nn.Module:
        """The same convolution by the library."""
        plain = copy.copy(self)
        plain.algorithms = PhaseAlgorithms()
        return plain

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, {self.geometry}, {self.algorithms}"


def geometry(convolution: nn.modules.conv._ConvNd) -> Geometry:
    """The geometry of a ``torch.nn`` convolution."""
    if convolution.padding_mode != "zeros" or isinstance(convolution.padding, str):
        raise ValueError(f"padding {convolution.padding!r} ({convolution.padding_mode}) is not supported")
    return Geometry(
        stride=convolution.stride,
        padding=convolution.padding,
        dilation=convolution.dilation,
        groups=convolution.groups,
        transposed=convolution.transposed,
        output_padding=convolution.output_padding,
    )


class SpatialLinear(nn.Module):
    """DNNMark's fully connected layer: ``(N, C, H, W)`` to ``(N, out, 1, 1)``."""

    def __init__(self, in_features: int, out_features: int, bias: bool):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x.flatten(1))
        return y[:, :, None, None]


class WindowPool(nn.Module):
    """Pooling with any padding and rounding: pads explicitly where ``torch``'s own rules are stricter."""

    def __init__(self, layer: spec.Pooling):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        layer, height_width = self.layer, x.shape[2:]
        out = layer.output(tuple(x.shape))[2:]
        # Extent of the last window beyond the input: cropped if negative, padded if positive.
        far = [
            (positions - 1) * stride + kernel - size - pad
            for positions, stride, kernel, size, pad in zip(
                out, layer.stride, layer.kernel, height_width, layer.padding, strict=True
            )
        ]
        edges = (layer.padding[1], far[1], layer.padding[0], far[0])
        if layer.mode == "max":
            return F.max_pool2d(F.pad(x, edges, value=float("-inf")), layer.kernel, layer.stride)
        mean = F.avg_pool2d(F.pad(x, edges), layer.kernel, layer.stride)
        if layer.mode == "average":
            return mean
        inside = F.avg_pool2d(F.pad(torch.ones_like(x[:1, :1]), edges), layer.kernel, layer.stride)
        return mean / inside


class ClippedReLU(nn.Module):
    """``min(max(x, 0), ceiling)``; a ceiling of zero, as in DNNMark, is allowed."""

    def __init__(self, ceiling: float):
        super().__init__()
        self.ceiling = ceiling

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(0.0, self.ceiling)


class Copy(nn.Module):
    """A copy of the input."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


class PerActivationBatchNorm(nn.BatchNorm1d):
    """Batch normalization with a mean for each channel and position."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)).view(x.shape)


class WithinChannelNorm(nn.Module):
    """Local response normalization over neighboring positions; see :class:`lamina.spec.layers.LocalResponseNorm`."""

    def __init__(self, layer: spec.LocalResponseNorm):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        mean = F.avg_pool1d if x.dim() == 3 else F.avg_pool2d
        squares = mean(x * x, layer.size, stride=1, padding=layer.size // 2)
        return x / (layer.k + layer.alpha * squares) ** layer.beta

    def extra_repr(self) -> str:
        return f"{self.layer.size}, alpha={self.layer.alpha}, beta={self.layer.beta}, k={self.layer.k}"


class Softmax(nn.Module):
    """Softmax over channels, a whole sample, or the last axis; see :class:`lamina.spec.layers.Softmax`."""

    def __init__(self, layer: spec.Softmax):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1) if self.layer.mode == "instance" else x
        axis = -1 if self.layer.mode == "last" else 1
        match self.layer.algorithm:
            case "log":
                y = flat.log_softmax(axis)
            case "fast":
                powers = flat.exp()
                y = powers / powers.sum(axis, keepdim=True)
            case _:
                y = flat.softmax(axis)
        return y.view(x.shape)


class Attention(nn.Module):
    """Scaled dot-product attention on packed or separate inputs; see :class:`lamina.spec.layers.Attention`."""

    def __init__(self, heads: int, causal: bool):
        super().__init__()
        self.heads, self.causal = heads, causal

    def forward(self, *inputs: Tensor) -> Tensor:
        q, k, v = inputs[0].chunk(3, -1) if len(inputs) == 1 else inputs
        if q.dim() == 4:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)


class SequenceLSTM(nn.LSTM):
    """``nn.LSTM`` that returns only its outputs."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


class Join(nn.Module):
    """Sum, product or concatenation of the inputs."""

    def __init__(self, how: str, axis: int = 1):
        super().__init__()
        self.how, self.axis = how, axis

    def forward(self, *inputs: Tensor) -> Tensor:
        if self.how == "concat":
            return torch.cat(inputs, self.axis)
        return _fold(torch.add if self.how == "add" else torch.mul, inputs)

    def extra_repr(self) -> str:
        return self.how


def _fold(function: object, values: Sequence[Tensor]) -> Tensor:
    result = values[0]
    for value in values[1:]:
        result = function(result, value)  # type: ignore[operator]
    return result


class Transposed(nn.Module):
    """Transposes two axes."""

    def __init__(self, first: int, second: int):
        super().__init__()
        self.axes = (first, second)

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(*self.axes)
