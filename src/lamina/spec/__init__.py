"""What is asked: layers, networks, workloads, methods, and the readers of their files. No torch here."""

from lamina.spec.cost import Cost, Phase
from lamina.spec.dnnmark import read_dnnmark
from lamina.spec.files import read
from lamina.spec.layers import KINDS, Layer
from lamina.spec.method import METHODS, Method, MethodInfo
from lamina.spec.network import Input, Network, ResolvedLayer
from lamina.spec.shape import Shape, elements, show
from lamina.spec.toml import read_toml, write_toml
from lamina.spec.workload import ITEM_BYTES, Layout, Point, Precision, Workload

__all__ = [
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
    "Shape",
    "Workload",
    "elements",
    "read",
    "read_dnnmark",
    "read_toml",
    "show",
    "write_toml",
]
