"""Layer classes; ``KINDS`` maps the names used in files to them."""

from lamina.spec.layers.activation import Activation, Bypass, Dropout
from lamina.spec.layers.base import Layer
from lamina.spec.layers.convolution import Convolution
from lamina.spec.layers.joining import Add, Concat, Flatten, Multiply, Opaque, Transpose
from lamina.spec.layers.linear import Linear
from lamina.spec.layers.normalization import BatchNorm, LayerNorm, LocalResponseNorm, Softmax
from lamina.spec.layers.pooling import AdaptivePooling, Pooling
from lamina.spec.layers.sequence import LSTM, Attention, Embedding

KINDS: dict[str, type[Layer]] = {
    layer.kind: layer
    for layer in (
        Convolution,
        Linear,
        Pooling,
        AdaptivePooling,
        Activation,
        Dropout,
        Bypass,
        BatchNorm,
        LayerNorm,
        LocalResponseNorm,
        Softmax,
        Embedding,
        Attention,
        LSTM,
        Add,
        Multiply,
        Concat,
        Flatten,
        Transpose,
    )
}

__all__ = [
    "KINDS",
    "LSTM",
    "Activation",
    "AdaptivePooling",
    "Add",
    "Attention",
    "BatchNorm",
    "Bypass",
    "Concat",
    "Convolution",
    "Dropout",
    "Embedding",
    "Flatten",
    "Layer",
    "LayerNorm",
    "Linear",
    "LocalResponseNorm",
    "Multiply",
    "Opaque",
    "Pooling",
    "Softmax",
    "Transpose",
]
