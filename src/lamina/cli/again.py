"""Command lines that run one point of a workload in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamina.spec.method import Method

if TYPE_CHECKING:
    from lamina.pipeline import Options
    from lamina.spec import Point, Workload


@dataclass(frozen=True)
class Again:
    """A network by its SPEC, and the options of its runs."""

    word: str
    workload: Workload
    how: Options
    variables: Sequence[str]
    input_size: str
    plan: str = ""

    def iterate(self, point: Point) -> list[str]:
        """Run the iteration once, for Nsight Compute to watch."""
        return [*self._profile(point, self.how), "--iterate"]

    def profile(self, point: Point, how: Options, store: str) -> list[str]:
        """Profile the point with other options, into another database."""
        return [
            *self._profile(point, how),
            *("--store", store, "--format", "csv"),
            *(("--repeat", str(self.workload.repeat)) if self.workload.repeat else ()),
            *(() if self.workload.check else ("--no-check",)),
        ]

    def _profile(self, point: Point, how: Options) -> list[str]:
        return [
            *(sys.executable, "-m", "lamina", "profile", self.word),
            *(("--batch-size", str(point.batch)) if point.batch else ()),
            *("--precision", point.precision, "--layout", point.layout, "--device", self.workload.device),
            *("--data", self.workload.data, "--seed", str(self.workload.seed)),
            *(("--impl", str(point.method)) if point.method != Method() else ()),
            *(("--plan", self.plan) if self.plan else ()),
            *(("--layer", ",".join(self.workload.layers)) if self.workload.layers else ()),
            *(("--inference",) if not how.training else ()),
            *(("--autotune",) if how.autotune else ()),
            *(("--input-size", self.input_size) if self.input_size else ()),
            *(part for pair in self.variables for part in ("--set", pair)),
        ]
