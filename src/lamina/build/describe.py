"""Layer descriptions of traced modules and functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.spec import Shape
from lamina.spec import layers as spec

Description = tuple[type[spec.Layer], dict[str, Any]]


def describe(
    target: Any, inputs: tuple[Shape, ...], arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> Description | None:
    """The layer class and settings of a call, or ``None`` if lamina has no cost formula for it.

    ``target`` is a module or a function; ``arguments`` and ``options`` are the arguments of a function.
    """
    if isinstance(target, nn.Module):
        known = getattr(target, "lamina_layer", None)
        if known is not None:
            return type(known), known.model_dump(exclude={"name", "inputs"})
        reader = next((_MODULES[kind] for kind in type(target).__mro__ if kind in _MODULES), None)
        return reader(target) if reader else None
    reader = _FUNCTIONS.get(target)
    return reader(inputs, arguments, options) if reader else None


def _convolution(m: Any) -> Description | None:
    if m.padding_mode != "zeros" or isinstance(m.padding, str):
        return None
    return spec.Convolution, {
        "rank": m.weight.dim() - 2,
        "out_channels": m.out_channels,
        "kernel": m.kernel_size,
        "stride": m.stride,
        "padding": m.padding,
        "dilation": m.dilation,
        "groups": m.groups,
        "bias": m.bias is not None,
        "transposed": m.transposed,
        "output_padding": m.output_padding,
    }


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _pooling(mode: str) -> Callable[[Any], Description | None]:
    def read(m: Any) -> Description | None:
        if getattr(m, "dilation", 1) not in (1, (1, 1)) or getattr(m, "divisor_override", None):
            return None
        excluding = mode == "average" and not m.count_include_pad and _pair(m.padding) != (0, 0)
        return spec.Pooling, {
            "mode": "average_excluding_padding" if excluding else mode,
            "kernel": _pair(m.kernel_size),
            "stride": _pair(m.stride),
            "padding": _pair(m.padding),
            "rounding": "ceil" if m.ceil_mode else "floor",
        }

    return read


def _adaptive(mode: str) -> Callable[[Any], Description | None]:
    def read(m: Any) -> Description | None:
        size = _pair(m.output_size)
        return None if None in size else (spec.AdaptivePooling, {"mode": mode, "size": size})

    return read


def _lstm(m: nn.LSTM) -> Description | None:
    if not m.batch_first or m.proj_size:
        return None
    return spec.LSTM, {
        "hidden": m.hidden_size,
        "layers": m.num_layers,
        "bidirectional": m.bidirectional,
        "bias": m.bias,
    }


def _batch_norm(m: Any) -> Description | None:
    if not m.affine or m.momentum is None:
        return None
    return spec.BatchNorm, {"eps": m.eps, "momentum": m.momentum}


_MODULES: dict[type[nn.Module], Callable[[Any], Description | None]] = {
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.ConvTranspose1d: _convolution,
    nn.ConvTranspose2d: _convolution,
    nn.Linear: lambda m: (spec.Linear, {"out_features": m.out_features, "bias": m.bias is not None}),
    nn.MaxPool2d: _pooling("max"),
    nn.AvgPool2d: _pooling("average"),
    nn.AdaptiveAvgPool2d: _adaptive("average"),
    nn.AdaptiveMaxPool2d: _adaptive("max"),
    nn.ReLU: lambda m: (spec.Activation, {"function": "relu"}),
    nn.ReLU6: lambda m: (spec.Activation, {"function": "clipped_relu", "ceiling": 6.0}),
    nn.LeakyReLU: lambda m: (spec.Activation, {"function": "leaky_relu", "slope": m.negative_slope}),
    nn.Sigmoid: lambda m: (spec.Activation, {"function": "sigmoid"}),
    nn.Tanh: lambda m: (spec.Activation, {"function": "tanh"}),
    nn.Softplus: lambda m: (spec.Activation, {"function": "soft_relu"}),
    nn.GELU: lambda m: (spec.Activation, {"function": "gelu"}),
    nn.SiLU: lambda m: (spec.Activation, {"function": "silu"}),
    nn.Hardswish: lambda m: (spec.Activation, {"function": "hardswish"}),
    nn.Dropout: lambda m: (spec.Dropout, {"probability": m.p}) if 0 < m.p < 1 else None,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.LayerNorm: lambda m: (
        spec.LayerNorm,
        {
            "axes": len(m.normalized_shape),
            "eps": m.eps,
            "affine": m.elementwise_affine,
            "bias": m.bias is not None,
        },
    ),
    nn.LocalResponseNorm: lambda m: (
        spec.LocalResponseNorm,
        {"size": m.size, "alpha": m.alpha, "beta": m.beta, "k": m.k},
    ),
    nn.Embedding: lambda m: (spec.Embedding, {"vocabulary": m.num_embeddings, "dim": m.embedding_dim}),
    nn.LSTM: _lstm,
    nn.Flatten: lambda m: (spec.Flatten, {"start": m.start_dim}) if m.end_dim == -1 else None,
}


def _argument(arguments: tuple[Any, ...], options: Mapping[str, Any], index: int, name: str, default: Any) -> Any:
    return options.get(name, arguments[index] if len(arguments) > index else default)


def _tensors(inputs: tuple[Shape, ...], arguments: tuple[Any, ...]) -> bool:
    return len(inputs) == 2 and all(isinstance(a, Tensor) for a in arguments[:2])


def _joining(kind: type[spec.Layer]) -> Callable[..., Description | None]:
    def read(inputs: tuple[Shape, ...], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Description | None:
        return (kind, {}) if _tensors(inputs, arguments) and options.get("alpha", 1) == 1 else None

    return read


def _concat(inputs: tuple[Shape, ...], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Description | None:
    return spec.Concat, {"axis": _argument(arguments, options, 1, "dim", 0)}


def _flatten(inputs: tuple[Shape, ...], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Description | None:
    start = _argument(arguments, options, 1, "start_dim", 0)
    return (spec.Flatten, {"start": start}) if _argument(arguments, options, 2, "end_dim", -1) == -1 else None


def _attention(inputs: tuple[Shape, ...], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Description | None:
    if len(inputs) != 3 or len(inputs[0]) != 4 or options.get("enable_gqa"):
        return None
    return spec.Attention, {"causal": bool(_argument(arguments, options, 5, "is_causal", False))}


def _softmax(algorithm: str) -> Callable[..., Description | None]:
    def read(inputs: tuple[Shape, ...], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Description | None:
        axis, rank = _argument(arguments, options, 1, "dim", None), len(inputs[0])
        if axis is None:
            return None
        mode = {1: "channel", rank - 1: "last"}.get(axis % rank)
        return (spec.Softmax, {"algorithm": algorithm, "mode": mode}) if mode else None

    return read


def _activation(function: str) -> Callable[..., Description | None]:
    return lambda inputs, arguments, options: (spec.Activation, {"function": function})


_FUNCTIONS: dict[Any, Callable[..., Description | None]] = {
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__), _joining(spec.Add)),
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), _joining(spec.Multiply)),
    **dict.fromkeys((torch.cat, torch.concat), _concat),
    **dict.fromkeys((torch.flatten, Tensor.flatten), _flatten),
    **dict.fromkeys((torch.relu, Tensor.relu, F.relu), _activation("relu")),
    **dict.fromkeys((torch.sigmoid, Tensor.sigmoid, F.sigmoid), _activation("sigmoid")),
    **dict.fromkeys((torch.tanh, Tensor.tanh, F.tanh), _activation("tanh")),
    F.gelu: _activation("gelu"),
    F.silu: _activation("silu"),
    F.hardswish: _activation("hardswish"),
    F.scaled_dot_product_attention: _attention,
    **dict.fromkeys((torch.softmax, Tensor.softmax, F.softmax), _softmax("accurate")),
    **dict.fromkeys((torch.log_softmax, Tensor.log_softmax, F.log_softmax), _softmax("log")),
}
