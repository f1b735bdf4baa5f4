"""Specifications: layers, networks, workloads, methods, and readers of their files. Does not import torch."""

from typing import TYPE_CHECKING

from lamina.lazy import lazy

if TYPE_CHECKING:
    from lamina.spec.cost import Cost, Phase
    from lamina.spec.dnnmark import read_dnnmark
    from lamina.spec.files import read
    from lamina.spec.layers import KINDS, Layer
    from lamina.spec.method import DENSE_ALGORITHMS, METHODS, Method, MethodInfo
    from lamina.spec.network import Input, Network, ResolvedLayer, ScalarInput
    from lamina.spec.shape import Shape, elements, show
    from lamina.spec.toml import read_toml, write_toml
    from lamina.spec.workload import CLOCKS, DATASETS, ITEM_BYTES, Layout, Point, Precision, Workload

__all__ = [
    "CLOCKS",
    "DATASETS",
    "DENSE_ALGORITHMS",
    "ITEM_BYTES",
    "KINDS",
    "METHODS",
    "Cost",
    "Input",
    "Layer",
    "Layout",
    "Method",
    "MethodInfo",
    "Network",
    "Phase",
    "Point",
    "Precision",
    "ResolvedLayer",
    "ScalarInput",
    "Shape",
    "Workload",
    "elements",
    "read",
    "read_dnnmark",
    "read_toml",
    "show",
    "write_toml",
]

_MODULES = {
    "cost": ("Cost", "Phase"),
    "dnnmark": ("read_dnnmark",),
    "files": ("read",),
    "layers": ("KINDS", "Layer"),
    "method": ("DENSE_ALGORITHMS", "METHODS", "Method", "MethodInfo"),
    "network": ("Input", "Network", "ResolvedLayer", "ScalarInput"),
    "shape": ("Shape", "elements", "show"),
    "toml": ("read_toml", "write_toml"),
    "workload": ("CLOCKS", "DATASETS", "ITEM_BYTES", "Layout", "Point", "Precision", "Workload"),
}

# The names of methods cost nothing to import; layers and networks need pydantic.
lazy(__name__, {name: f"{__name__}.{module}:{name}" for module, names in _MODULES.items() for name in names})
