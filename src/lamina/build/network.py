"""Builds a ``torch.nn`` module from a network description, with one child per layer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lamina.build import modules
from lamina.build.convolution import PhaseAlgorithms
from lamina.errors import UnsupportedError
from lamina.record.wording import listed
from lamina.spec import Network, ResolvedLayer, Shape
from lamina.spec import layers as spec

M = TypeVar("M", bound=nn.Module)


class SpecModule(nn.Module):
    """A network built from its description: children have the names of the layers.

    Takes one tensor per input, in the description's order. Returns the outputs of the network (a tensor or a tuple).
    """

    def __init__(self, network: Network):
        super().__init__()
        self.network = network
        self.steps: list[tuple[str, spec.Layer]] = []
        for resolved in network.resolve():
            child = resolved.name.replace(".", "_")
            while hasattr(self, child):
                child += "_"
            self.add_module(child, build_layer(resolved))
            self.steps.append((child, resolved.layer))

    def forward(self, *inputs: Tensor) -> Any:
        values = {source.name: value for source, value in zip(self.network.inputs, inputs, strict=True)}
        for child, layer in self.steps:
            values[layer.name] = self.get_submodule(child)(*(values[name] for name in layer.inputs))
        results = tuple(values[name] for name in self.network.outputs())
        return results[0] if len(results) == 1 else results


def build_layer(resolved: ResolvedLayer) -> nn.Module:
    """The module of one layer; its description is the attribute ``lamina_layer``."""
    module = _BUILDERS[type(resolved.layer)](resolved.layer, resolved.inputs[0])
    module.lamina_layer = resolved.layer  # type: ignore[assignment]
    return module


def _convolution(layer: spec.Convolution, x: Shape) -> nn.Module:
    names: dict[tuple[int, bool], Any] = {
        (1, False): nn.Conv1d,
        (2, False): nn.Conv2d,
        (1, True): nn.ConvTranspose1d,
        (2, True): nn.ConvTranspose2d,
    }
    extra = {"output_padding": layer.output_padding} if layer.transposed else {}
    dense: nn.modules.conv._ConvNd = names[layer.rank, layer.transposed](
        x[1],
        layer.out_channels,
        layer.kernel,
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=layer.groups,
        bias=layer.bias,
        **extra,
    )
    algorithms = PhaseAlgorithms(
        layer.algorithm,
        layer.algorithm_data,
        layer.algorithm_weight,
        (layer.workspace_limit, layer.workspace_limit_data, layer.workspace_limit_weight),
    )
    if algorithms == PhaseAlgorithms() and not layer.flip:
        return dense
    return modules.AlgorithmConvolution(dense, algorithms, layer.flip)


def _pooling(layer: spec.Pooling, x: Shape) -> nn.Module:
    narrow = all(2 * pad <= kernel for pad, kernel in zip(layer.padding, layer.kernel, strict=True))
    ours = spec.Pooling.model_validate(layer.model_dump() | {"rounding": "ceil"}).output(x) == layer.output(x)
    if not narrow or (layer.rounding == "caffe" and not ours):
        return modules.WindowPool(layer)
    window: dict[str, Any] = {
        "kernel_size": layer.kernel,
        "stride": layer.stride,
        "padding": layer.padding,
        "ceil_mode": layer.rounding != "floor",
    }
    if layer.mode == "max":
        return nn.MaxPool2d(**window)
    return nn.AvgPool2d(**window, count_include_pad=layer.mode == "average")


def _activation(layer: spec.Activation, x: Shape) -> nn.Module:
    makers: dict[str, Callable[[], nn.Module]] = {
        "relu": nn.ReLU,
        "clipped_relu": lambda: modules.ClippedReLU(layer.ceiling),
        "leaky_relu": lambda: nn.LeakyReLU(layer.slope),
        "sigmoid": nn.Sigmoid,
        "tanh": nn.Tanh,
        "soft_relu": nn.Softplus,
        "gelu": nn.GELU,
        "silu": nn.SiLU,
        "hardswish": nn.Hardswish,
    }
    return makers[layer.function]()


def _batch_norm(layer: spec.BatchNorm, x: Shape) -> nn.Module:
    if layer.mode == "per_activation":
        return modules.PerActivationBatchNorm(prod(x[1:]), layer.eps, layer.momentum)
    batch_norm = nn.BatchNorm2d if len(x) == 4 else nn.BatchNorm1d
    return batch_norm(x[1], layer.eps, layer.momentum)


def _layer_norm(layer: spec.LayerNorm, x: Shape) -> nn.Module:
    return nn.LayerNorm(x[-layer.axes :], layer.eps, elementwise_affine=layer.affine, bias=layer.bias)


def _lstm(layer: spec.LSTM, x: Shape) -> nn.Module:
    return modules.SequenceLSTM(
        x[2], layer.hidden, layer.layers, bias=layer.bias, batch_first=True, bidirectional=layer.bidirectional
    )


_BUILDERS: dict[type[spec.Layer], Callable[[Any, Shape], nn.Module]] = {
    spec.Convolution: _convolution,
    spec.Linear: lambda layer, x: (
        modules.SpatialLinear(prod(x[1:]), layer.out_features, layer.bias)
        if layer.spatial
        else nn.Linear(x[-1], layer.out_features, layer.bias)
    ),
    spec.Pooling: _pooling,
    spec.AdaptivePooling: lambda layer, x: (
        nn.AdaptiveMaxPool2d(layer.size) if layer.mode == "max" else nn.AdaptiveAvgPool2d(layer.size)
    ),
    spec.Activation: _activation,
    spec.Dropout: lambda layer, x: nn.Dropout(layer.probability),
    spec.Bypass: lambda layer, x: modules.Copy(),
    spec.BatchNorm: _batch_norm,
    spec.LayerNorm: _layer_norm,
    spec.LocalResponseNorm: lambda layer, x: (
        nn.LocalResponseNorm(layer.size, layer.alpha, layer.beta, layer.k)
        if layer.mode == "cross_channel"
        else modules.WithinChannelNorm(layer)
    ),
    spec.Softmax: lambda layer, x: modules.Softmax(layer),
    spec.Embedding: lambda layer, x: nn.Embedding(layer.vocabulary, layer.dim),
    spec.Attention: lambda layer, x: modules.Attention(layer.heads, layer.causal),
    spec.LSTM: _lstm,
    spec.Add: lambda layer, x: modules.Join("add"),
    spec.Multiply: lambda layer, x: modules.Join("multiply"),
    spec.Concat: lambda layer, x: modules.Join("concat", layer.axis),
    spec.Flatten: lambda layer, x: nn.Flatten(layer.start),
    spec.Transpose: lambda layer, x: modules.Transposed(layer.first, layer.second),
}


def to_precision(module: nn.Module, precision: str, device: torch.device, layout: str) -> nn.Module:
    """Move a module to a device, dtype and memory format; ``tf32`` is stored in float32.

    Parameters change if all have one dtype. Of a module that mixes dtypes only float32 ones do: it converts between the
    others itself. So do buffers of the dtypes that change, and of float32.
    Complex ones stay as they are: ``Module.to`` would discard their imaginary parts.

    Raises:
        UnsupportedError: weights are on the meta device.
    """
    if device.type != "meta":
        _require_values(module)
    changed = {torch.float32, _stored_dtype(module)}
    module = module.to(device)._apply(lambda one: one.to(DTYPES[precision]) if one.dtype in changed else one)
    if layout == "nhwc":  # as Module.to does, which needs the shapes of lazy parameters
        module = module._apply(
            lambda one: one if is_lazy(one) or one.dim() != 4 else one.to(memory_format=torch.channels_last)
        )
    return module


def stored_precision(module: nn.Module) -> str | None:
    """The precision in which a module's parameters are stored; ``None`` if they mix dtypes, or have another one."""
    own = _stored_dtype(module)
    return next((name for name, dtype in DTYPES.items() if dtype == own), None)


def conversion(module: nn.Module, precision: str) -> str:
    """What `to_precision` would convert parameters of another dtype than float32 from, as a note; else nothing."""
    own = _stored_dtype(module)
    if own in (None, torch.float32, DTYPES[precision]):
        return ""
    return f"its weights are {str(own).removeprefix('torch.')} and are converted to {precision}"


def _stored_dtype(module: nn.Module) -> torch.dtype | None:
    """The dtype of all parameters, or of all buffers where there are no parameters; ``None`` if they mix dtypes."""
    for tensors in (module.parameters(), module.buffers()):
        if floats := {one.dtype for one in tensors if one.is_floating_point()}:
            return floats.pop() if len(floats) == 1 else None
    return None


def copied(module: M) -> M:
    """A copy with weights of its own. Those of recurrent layers are in one chunk, as those of a new layer.

    Otherwise cuDNN copies them to one in each call, which it does not for the user's layer.
    """
    twin = copy.deepcopy(module)
    for layer in twin.modules():
        if isinstance(layer, nn.RNNBase):
            layer.flatten_parameters()
    return twin


def _require_values(module: nn.Module) -> None:
    empty = [name for name, one in (*module.named_parameters(), *module.named_buffers()) if one.is_meta]
    if empty:
        raise UnsupportedError(
            f"{type(module).__name__}: {listed(empty, 3)} on the meta device: expected weights with values; build it "
            "on the CPU, or allocate them with to_empty(device='cpu') and initialize them"
        )


DTYPES: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
