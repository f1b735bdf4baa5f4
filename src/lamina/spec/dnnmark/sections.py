"""The layer sections: their keys, their defaults, and the layer that they describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lamina.spec.dnnmark import workspace
from lamina.spec.dnnmark.algorithms import ALGORITHMS, algorithms
from lamina.spec.dnnmark.values import (
    Reader,
    Warn,
    choice,
    integer,
    lenient,
    real,
    within,
    without_effect,
    word,
)
from lamina.spec.layers import (
    Activation,
    BatchNorm,
    Bypass,
    Convolution,
    Dropout,
    Layer,
    Linear,
    LocalResponseNorm,
    Pooling,
    Softmax,
)
from lamina.spec.method import Method

Settings = dict[str, Any]
DIMENSIONS = ("n", "c", "h", "w")
MIN_EPSILON = 1e-5
"""cuDNN's lower bound of the epsilon of batch normalization; DNNMark aborts below it."""


Unused = Callable[[Mapping[str, str]], bool]
"""Whether a key has no effect, given a section's settings as written."""


@dataclass(frozen=True)
class Key:
    """The reader of one key, the settings that it sets, and whether a variable without a value may stay in it."""

    read: Reader
    sets: tuple[str, ...]
    unused: Unused = lambda settings: False


@dataclass(frozen=True)
class SectionType:
    """A section type. The defaults are DNNMark's; ``fields`` converts the section's settings to the layer's."""

    layer: type[Layer]
    fields: Callable[[Settings, Warn], Settings]
    keys: dict[str, Key] = field(default_factory=dict)
    defaults: Settings = field(default_factory=dict)


def _key(read: Reader, *sets: str) -> Key:
    return Key(read, sets)


def _ignored(why: str) -> Key:
    return Key(without_effect(why), (), lambda settings: True)


def _sized(key: str, setting: str, least: int) -> dict[str, Key]:
    """A size for both axes, or for one; the last line takes precedence."""
    read, high, wide = integer(least), f"{setting}_h", f"{setting}_w"
    return {key: _key(read, high, wide), f"{key}_h": _key(read, high), f"{key}_w": _key(read, wide)}


_WINDOW = _sized("kernel_size", "kernel", 1) | _sized("pad", "padding", 0) | _sized("stride", "stride", 1)


def _window(kernel: int, padding: int, stride: int) -> Settings:
    sizes = {"kernel": kernel, "padding": padding, "stride": stride}
    return {f"{name}_{axis}": size for name, size in sizes.items() for axis in "hw"}


def _axes(s: Settings) -> Settings:
    return {name: (s[f"{name}_h"], s[f"{name}_w"]) for name in ("kernel", "padding", "stride")}


def _convolution(s: Settings, warn: Warn) -> Settings:
    if s["mode"] == "transpose":
        warn("conv_mode=transpose: DNNMark used the output size of a forward convolution, lamina does not")
    return {
        "out_channels": s["num_output"],
        "flip": s["mode"] == "convolution",
        "transposed": s["mode"] == "transpose",
        "propagate": s["propagation"] != "false",
        **_axes(s),
        **(chosen := algorithms(s, warn)),
        **workspace.limits(s, chosen, warn),
    }


_AVERAGES = {
    "avg_include_padding": "average",
    "avg_exclude_padding": "average_excluding_padding",
    "avg": "average_excluding_padding",
}


def _pooling(s: Settings, warn: Warn) -> Settings:
    if s["mode"] == "avg":
        warn("pool_mode=avg is that of MIOpen: its average excludes padding")
    return {"mode": _AVERAGES.get(s["mode"], "max"), "rounding": "caffe", **_axes(s)}


def _activation(s: Settings, warn: Warn) -> Settings:
    if s["function"] == "clipped_relu":
        warn("clipped_relu: DNNMark fixes the ceiling at 0, so every output is 0; kept")
        return s | {"ceiling": 0.0}
    return s


def _linear(s: Settings, warn: Warn) -> Settings:
    return {"out_features": s["num_output"], "spatial": True}


_OPTIMIZATIONS = {"NO": (), "O1": (("impl", "o1"),), "O2": (("impl", "o2"),), "KF": (("impl", "fusion"),)}
"""DNNMark's kernels as versions of the dissertation; without an optimization lamina's own kernels compute the layer."""


def _circulant(s: Settings, warn: Warn) -> Settings:
    options = (("block_size", s["block_size"]), *_OPTIMIZATIONS[s["optimization"]])
    return _linear(s, warn) | {"method": Method("circulant", options=options)}


def _same(s: Settings, warn: Warn) -> Settings:
    return s


_OPTIMIZATION = _key(lenient(*_OPTIMIZATIONS), "optimization")

COMMON = {name: _key(word, name) for name in ("name", "previous_layer")} | {
    name: _key(integer(1), name) for name in DIMENSIONS
}
"""Keys of every layer."""

SECTIONS = {
    "Convolution": SectionType(
        Convolution,
        _convolution,
        {
            "conv_mode": _key(choice("convolution", "cross_correlation", "transpose"), "mode"),
            "num_output": _key(integer(1), "num_output"),
            "propagation": _key(lenient("true", "false"), "propagation"),
            **{key: Key(lenient(*workspace.WORDS), (key,), lambda s: True) for key in workspace.PREFERENCES},
            "workspace_size": Key(integer(0), ("workspace_size",), lambda s: workspace.LIMITED not in s.values()),
            **{name: _key(word, name) for name in ALGORITHMS},
            **_WINDOW,
        },
        {"mode": "cross_correlation", "num_output": 32, "propagation": "true"}
        | dict.fromkeys(ALGORITHMS, "")
        | dict.fromkeys(workspace.PREFERENCES, workspace.FASTEST)
        | {"workspace_size": 0}
        | _window(kernel=5, padding=2, stride=1),
    ),
    "Pooling": SectionType(
        Pooling,
        _pooling,
        {"pool_mode": _key(choice("max", *_AVERAGES), "mode"), **_WINDOW},
        {"mode": "max"} | _window(kernel=3, padding=0, stride=2),
    ),
    "LRN": SectionType(
        LocalResponseNorm,
        lambda s, warn: s | {"mode": s["mode"].removesuffix("_dim1")},
        {
            "lrn_mode": _key(lenient("cross_channel_dim1", "within_channel"), "mode"),
            "local_size": _key(integer(1), "size"),
            **{name: _key(real, name) for name in ("alpha", "beta", "k")},
        },
        {"mode": "cross_channel_dim1", "size": 5, "alpha": 1e-4, "beta": 0.75, "k": 2.0},
    ),
    "Activation": SectionType(
        Activation,
        _activation,
        {"activation_mode": _key(choice("sigmoid", "relu", "tanh", "clipped_relu", "soft_relu"), "function")},
        {"function": "relu"},
    ),
    "FullyConnected": SectionType(
        Linear, _linear, {"num_output": _key(integer(1), "num_output")}, {"num_output": 4096}
    ),
    "BCMFullyConnected": SectionType(
        Linear,
        _circulant,
        {
            "num_output": _key(integer(1), "num_output"),
            "block_size": _key(integer(1), "block_size"),
            "optimization": _OPTIMIZATION,
            "optimized": _OPTIMIZATION,
        },
        {"num_output": 4096, "block_size": 32, "optimization": "NO"},
    ),
    "Softmax": SectionType(
        Softmax,
        _same,
        {
            "softmax_algo": _key(lenient("fast", "accurate", "log"), "algorithm"),
            "softmax_mode": _key(lenient("instance", "channel"), "mode"),
        },
        {"algorithm": "accurate", "mode": "channel"},
    ),
    "BatchNorm": SectionType(
        BatchNorm,
        _same,
        {
            "batchnorm_mode": _key(lenient("per_activation", "spatial"), "mode"),
            "save_intermediates": _ignored("is ignored: they are always saved (false crashed DNNMark)"),
            "exp_avg_factor": _key(within(0, 1), "momentum"),
            "epsilon": _key(within(MIN_EPSILON), "eps"),
        },
        {"mode": "per_activation", "momentum": 1.0, "eps": MIN_EPSILON},
    ),
    "Dropout": SectionType(
        Dropout,
        _same,
        {
            "dropout_probability": _key(real, "probability"),
            "random_seed": _key(integer(-(2**31)), "seed"),
        },
        {"probability": 0.5, "seed": 0},
    ),
    "Bypass": SectionType(Bypass, _same),
}
SECTIONS["CBMFullyConnected"] = SECTIONS["BCMFullyConnected"]  # the name in early files
