"""Tables that need no measurement: layers of networks, sizes, parameters and launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from math import prod
from typing import Any

from lamina.accelerate.papers.circulant_ladder.mapping import Sizes, table_multiply, table_sum
from lamina.accelerate.training.sparsity_monitor import Parameters
from lamina.pipeline.reproduce.measured.judging import Judged, Measurement, Rows, Scope
from lamina.spec import Phase, ResolvedLayer
from lamina.spec.published import PublishedValue
from lamina.spec.zoo import find

CIRCULANT: Mapping[str, Mapping[str, Any]] = {
    "A": {"shape": (8192, 4096), "batch": 128},
    "B": {"shape": (256, 512, 3, 3), "batch": 64},
    "C": {"shape": (1024, 1024), "batch": 128},
}
"""Layers of table 7.3: inputs, outputs and kernel."""
MILLION = 1e6
FAMILIES = (
    ("alexnet2012",),
    ("vgg11", "vgg13", "vgg16", "vgg19"),
    ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
)
"""The networks of tables 2.1 to 2.3, the deepest of each last."""
CLASSES = {"alexnet": 1000, "flickr-style": 20, "flower-species": 102, "sos-cnn": 5, "cifarnet": 10, "lenet5": 10}
"""Classes of DeftNN's applications in table 1, with the network that runs each."""
TRUNK = {"flickr-style": "alexnet", "flower-species": "alexnet", "sos-cnn": "alexnet"}
SIZES = Sizes(n=2, p=3, q=5, f=7)
"""Distinct sizes, so that a launch shows which axis each dimension of its grid is."""


def _layers(name: str) -> tuple[ResolvedLayer, ...]:
    return find(name).resolve(1)


def _networks(scope: Scope) -> Rows:
    known = {name: _layers(name) for family in FAMILIES for name in family}
    return [
        {"workload": name, **_counts(own), "gflops": sum(each.cost(Phase.FORWARD).flops for each in own) / 1e9}
        for name, own in known.items()
    ]


def _counts(layers: tuple[ResolvedLayer, ...]) -> dict[str, int]:
    """Layers by the dissertation's names; a residual unit is an addition, of type A with two convolutions."""
    kinds = Counter(layer.layer.kind for layer in layers)
    first = sum(
        layer.layer.kind == "convolution" and getattr(layer.layer, "kernel", None) == (7, 7) for layer in layers
    )
    units = kinds["add"]
    bottleneck = units and kinds["convolution"] - first >= 3 * units
    return {
        "convolution": kinds["convolution"],
        "convolution 7x7": first,
        "fully-connected": kinds["linear"],
        "max-pooling": sum(layer.layer.kind == "pooling" for layer in layers),
        "LRN": kinds["local_response_norm"],
        "softmax": 1,  # the loss applies it where the network does not
        "residual unit A": 0 if bottleneck else units,
        "residual unit B": units if bottleneck else 0,
        "weight layers": kinds["convolution"] + kinds["linear"],
    }


def _of(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """The column ``quantity`` of the row of the value's layer."""
    row = next(row for row in rows if row["workload"] == value.layer)
    return float(row[value.quantity]), f"{row[value.quantity]:g}"


def _weights(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    ours, _ = _of(rows, value)
    return ours / MILLION, f"{ours / MILLION:.4g} {value.unit}"


def layers_grow(rows: Rows) -> Judged:
    """The deepest network of each family has more layers with weights than the family before."""
    counts = [next(row for row in rows if row["workload"] == family[-1])["weight layers"] for family in FAMILIES]
    return " < ".join(map(str, counts)), counts == sorted(counts) and len({*counts}) == len(counts)


def operations_grow(rows: Rows) -> Judged:
    """The deepest network of each family needs more operations than the family before."""
    counts = [next(row for row in rows if row["workload"] == family[-1])["gflops"] for family in FAMILIES]
    return ", ".join(f"{count:.1f} GFLOP" for count in counts), counts == sorted(counts)


def _launch(quantity: str) -> Any:
    kernel, part = quantity.split()
    found = (table_multiply if kernel == "multiplication" else table_sum)("forward", SIZES)
    return found.block if part == "blockDim" else found.grid


def launch_is(kernel: str, axes: str) -> Any:
    """A rule that a kernel's launch has these axes, as ``(q, p, n)``; ``k`` is the block, ``f`` of a spectrum."""

    def rule(rows: Rows) -> Judged:
        names = {
            value: axis for axis, value in (("n", SIZES.n), ("p", SIZES.p), ("q", SIZES.q), ("k", SIZES.f), ("1", 1))
        }
        row = next(row for row in rows if row["workload"] == kernel)
        ours = f"({', '.join(names[size] for size in row['launch'])})"
        return ours, ours == axes

    return rule


LAUNCHES = {
    "multiplication blockDim": "(k, 1, 1)",
    "multiplication gridDim": "(q, p, n)",
    "summation blockDim": "(k, 1, 1)",
    "summation gridDim": "(p, n, 1)",
}
MONITOR = Measurement(
    (),
    values=dict.fromkeys(("measurements", "share of zeros", "iterations"), lambda rows, value: (
        float(rows[0][value.layer]), f"{rows[0][value.layer]:g}"
    )),
    run=lambda scope: [asdict(Parameters())],
)  # fmt: skip
CIRCULANT_SIZES = Measurement(
    (),
    values={"weights": _weights, "batch": _of},
    run=lambda scope: [
        {"workload": name, "weights": prod(one["shape"]), "batch": one["batch"]} for name, one in CIRCULANT.items()
    ],
)
NETWORKS = Measurement(
    (),
    values=dict.fromkeys(
        ("convolution", "convolution 7x7", "fully-connected", "max-pooling", "LRN", "softmax", "residual unit A",
         "residual unit B"), _of,
    ),
    statements={"layers_grow": layers_grow, "operations_grow": operations_grow},
    run=_networks,
)  # fmt: skip
APPLICATIONS = Measurement(
    (),
    values={"classes": _of, "layers": _of},
    run=lambda scope: [
        {"workload": name, "classes": count, "layers": _counts(_layers(TRUNK.get(name, name)))["weight layers"]}
        for name, count in CLASSES.items()
    ],
)
LAUNCH = Measurement(
    (),
    statements={
        f"{name.replace(' ', '_').lower()}_is_{axes.strip('()').replace(', ', '')}": launch_is(name, axes)
        for name, axes in LAUNCHES.items()
    },
    run=lambda scope: [{"workload": name, "launch": _launch(name)} for name in LAUNCHES],
)
