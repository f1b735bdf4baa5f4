"""Workloads: what to measure, and the grid of configurations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Literal

from pydantic import Field

from lamina.spec.cost import Phase
from lamina.spec.layers.base import Positive
from lamina.spec.method import Method
from lamina.spec.validated import Validated

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]
Layout = Literal["nchw", "nhwc"]
CLOCKS = ("cupti", "events", "graph", "wall", "cpu")
"""The clocks by name: those of CUDA devices, and that of the CPU."""
DATASETS = ("fashion-mnist", "synthetic")
"""Datasets that need no file."""
ITEM_BYTES: dict[str, int] = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Point:
    """One point of a workload's grid: all settings of one measurement of a network."""

    batch: int | None
    precision: Precision
    layout: Layout
    method: Method

    def __str__(self) -> str:
        return f"{self.method} {self.precision} {self.layout} batch {self.batch or 'as given'}"


class Workload(Validated):
    """What to measure, and how.

    An empty ``batch`` is the network's own batch size, empty ``clocks`` the preferred one of the device.
    """

    phases: tuple[Phase, ...] = tuple(Phase)
    layers: tuple[str, ...] = ()
    """Patterns of the layers to measure (`lamina.spec.layer_names`); the others run, densely. All by default."""
    precision: tuple[Precision, ...] = ("fp32",)
    layout: tuple[Layout, ...] = ("nchw",)
    batch: tuple[Positive, ...] = ()
    impl: tuple[Method, ...] = (Method(),)
    plan: dict[str, Method] = Field(default_factory=dict)
    """Methods of single layers, by name; each goes before ``impl``."""
    folded: bool = False
    """Whether each BatchNorm is folded into the layer before it, as for inference."""
    device: str = "cpu"
    clocks: tuple[str, ...] = ()
    l2: tuple[Literal["warm", "cold"], ...] = ("warm",)
    repeat: Positive | None = None
    """Samples of each timing; by default as many as the noise requires."""
    seconds: Annotated[float, Field(gt=0)] = 0.5
    """Time limit of each timing in seconds, whatever its noise."""
    data: str = "synthetic"
    seed: Annotated[int, Field(ge=0)] = 0
    check: bool = True
    """Whether results are compared with float64 before they are timed."""

    def points(self) -> Iterator[Point]:
        """The grid, slowest axis first."""
        batches: tuple[int | None, ...] = self.batch or (None,)
        for batch, precision, layout, method in product(batches, self.precision, self.layout, self.impl):
            yield Point(batch, precision, layout, method)
