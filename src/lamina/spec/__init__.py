"""What is asked: layers, networks, workloads, methods, and the readers of their files. No torch here."""

from lamina.spec.cost import Cost, Phase
from lamina.spec.layers import KINDS, Layer
from lamina.spec.method import METHODS, Method
from lamina.spec.network import Input, Network, ResolvedLayer
from lamina.spec.shape import Shape, elements, show
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
    "Network",
    "Phase",
    "Point",
    "Precision",
    "ResolvedLayer",
    "Shape",
    "Workload",
    "elements",
    "show",
]
